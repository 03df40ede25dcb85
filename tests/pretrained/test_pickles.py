"""Pickles read as data: what is read, and that nothing of a file is ever run."""

import os
import pickle
import pickletools
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.errors import UsageError
from jaxtrain.pretrained import pickles

CODES = [opcode.code.encode("latin1") for opcode in pickletools.opcodes]


def load(content: bytes) -> Any:
    """With one known function, and one known name that is not to be called."""
    known = {"known.call": lambda arguments: ["called", *arguments], "known.name": None}
    return pickles.load(content, known, lambda identity: ["persistent", identity])


def refusal(content: bytes) -> str:
    with pytest.raises(UsageError) as raised:
        load(content)
    return str(raised.value)


def read_or_refuse(content: bytes) -> None:
    """Nothing else may happen."""
    words = ""
    try:
        load(content)
    except UsageError as error:
        words = str(error)
    assert words.isprintable()


class Attack:
    """An object whose pickle calls `function` when Python reads it."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**2000), 2**2000)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=30,
)


@given(plain, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_are_read(value: Any, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


def test_what_is_shared_stays_shared() -> None:
    inner: list[Any] = [1]
    first, second = load(pickle.dumps([inner, inner], 2))
    assert first is second


def test_a_list_that_holds_itself() -> None:
    endless: list[Any] = []
    endless.append(endless)
    read = load(pickle.dumps(endless, 2))
    assert read[0] is read


def test_known_names_and_calls() -> None:
    assert load(b"\x80\x02cknown\nname\n.") == pickles.Name("known.name")
    assert load(b"\x80\x02cknown\ncall\nK\x01K\x02\x86R.") == ["called", 1, 2]
    assert load(b"\x80\x04\x8c\x05known\x8c\x04call\x93)R.") == ["called"]
    assert load(b"\x80\x02K\x07Q.") == ["persistent", 7]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_no_file_is_run(protocol: int, tmp_path: Path) -> None:
    made = tmp_path / "made"
    content = pickle.dumps({"weights": Attack(os.mkdir, str(made))}, protocol)
    assert "mkdir" in refusal(content) or "pickle instruction" in refusal(content)
    assert not made.exists()
    pickle.loads(content)
    assert made.exists()


ATTACKS = [
    (Attack(eval, "1/0"), "builtin"),
    (Attack(getattr, "", "join"), "builtin"),
    (Attack(os.system, "false"), "posix.system"),
    (Path("x"), "pathlib.PosixPath"),
    ({1, 2}, "builtin"),
    (OrderedDict(a=1), "collections.OrderedDict"),  # not among the known names here
    (b"bytes", "_codecs.encode"),
]


@pytest.mark.parametrize(("value", "named"), ATTACKS)
def test_what_is_found_is_named(value: Any, named: str) -> None:
    words = refusal(pickle.dumps(value, 2))
    assert words.startswith(f"holds a {'__' if named == 'builtin' else ''}{named}")
    assert words.endswith(
        "which is not read, as it could run code; save the weights alone, with PyTorch: "
        "torch.save(model.state_dict(), NEW)"
    )
    assert "\n" not in words


@pytest.mark.parametrize(
    ("content", "instruction"),
    [
        (b"\x80\x02cknown\nname\n)\x81.", "NEWOBJ"),
        (b"\x80\x04cknown\nname\n)}\x92.", "NEWOBJ_EX"),
        (b"(cknown\nname\no.", "OBJ"),
        (b"(iknown\nname\n.", "INST"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"Pidentity\n.", "PERSID"),
        (b"\x80\x05\x97.", "NEXT_BUFFER"),
        (pickle.dumps(1 << 99_999, 2), "LONG4"),
    ],
)
def test_other_instructions_are_refused(content: bytes, instruction: str) -> None:
    assert refusal(content).startswith(f"holds the pickle instruction {instruction},")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x02",
        b"\x80\x02K\x01",
        b"\x80\x02K",
        b"\x80\x02e.",
        b"\x80\x02(.",
        b"\x80\x02]K\x01K\x02s.",
        b"\x80\x02}(K\x01u.",
        b"\x80\x02}a.",
        b"\x80\x02}K\x01a.",
        b"\x80\x02h\x05.",
        b"\x80\x02K\x01)R.",
        b"\x80\x02cknown\ncall\nK\x01R.",
        b"\x80\x02K\x01K\x02\x93.",
        b"\x80\x02cknown\ncall\n}b.",
        b"\x80\x02X\xff\xff\xff\x7f.",
        b"\x80\x02X\x01\x00\x00\x00\xff.",
        b"\x80\x02cknown\n\xff\n.",
        b"I" + b"9" * 9999 + b"\n.",
        b"\xff.",
    ],
)
def test_damaged_pickles(content: bytes) -> None:
    assert refusal(content).startswith("is damaged or not whole (")


def test_a_call_of_what_is_only_a_name() -> None:
    assert refusal(b"\x80\x02cknown\nname\n)R.").startswith("holds a call of known.name, ")


def test_attributes_of_a_dict_are_left_out() -> None:
    assert load(b"\x80\x02}}X\x01\x00\x00\x00aK\x01sb.") == {}


def test_a_key_that_takes_forever_to_hash_is_refused() -> None:
    nested: Any = ()
    for _ in range(200):
        nested = (nested, nested)
    content = pickle.dumps([nested], 2)
    started = time.process_time()
    assert refusal(content[:2] + b"}" + content[2:-1] + b"K\x01s.").startswith("is damaged")
    key = b"}" + pickle.dumps(nested, 2)[2:-1] + b"K\x01s."
    assert refusal(b"\x80\x02" + key).startswith("is damaged or not whole (a tuple")
    assert time.process_time() - started < 10


def test_a_name_is_shown_on_one_line_and_cut() -> None:
    words = refusal(b"\x80\x04\x8c\x03a\nb\x8c\xf0" + b"x" * 240 + b"\x93.")
    assert words.startswith(r"holds a a\nb.xxx")
    assert len(words) < 300
    assert words.isprintable()


@given(st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(content: bytes) -> None:
    read_or_refuse(content)


pushes = st.sampled_from(
    [
        b"cknown\ncall\n",
        b"cknown\nname\n",
        b"X\x01\x00\x00\x00a",
        b"K\x01",
        b"G" + b"\x7f" * 8,
        b"\x8a\x02\xff\xff",
        b"q\x01",
        b"h\x01",
        b"(",
        *CODES,
    ]
)


@given(st.lists(pushes, max_size=40).map(b"".join))
def test_random_programs_are_read_or_refused(program: bytes) -> None:
    read_or_refuse(b"\x80\x04" + program + b".")
