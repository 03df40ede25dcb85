import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain.errors import UsageError
from jaxtrain.operations import parse, signature


@dataclasses.dataclass(frozen=True)
class Flip:
    """No arguments."""


@dataclasses.dataclass(frozen=True)
class Cutout:
    size: int
    fill: float = 0.0

    def __post_init__(self):
        if self.size < 1:
            raise ValueError("size must be above 0")


@dataclasses.dataclass(frozen=True)
class Mixed:
    flag: bool = True
    word: str = "mean"
    pair: tuple[float, int] = (0.5, 1)
    many: tuple[str, ...] = ()


TABLE = {"flip": Flip, "cutout": Cutout, "mixed": Mixed}


def read(text):
    return parse(text, TABLE, "data.augment")


def refusal(text):
    with pytest.raises(UsageError) as error:
        read(text)
    said = str(error.value)
    assert "\n" not in said
    assert said.startswith("data.augment")
    return said


def written(operation):
    """An operation as text, every argument named."""
    name = next(name for name, cls in TABLE.items() if cls is type(operation))
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in vars(operation).items())})"


floats = st.floats(allow_nan=False, allow_infinity=False)
operations = st.one_of(
    st.just(Flip()),
    st.builds(Cutout, st.integers(1), floats),
    st.builds(
        Mixed,
        st.booleans(),
        st.text(),
        st.tuples(floats, st.integers()),
        st.lists(st.text(), max_size=3).map(tuple),
    ),
)


@given(st.lists(operations, max_size=4), st.sampled_from(["|", " | ", "|  "]))
def test_what_is_written_is_read_back(listed, bar):
    got = read(bar.join(map(written, listed)))
    assert got == tuple(listed)
    assert repr(got) == repr(tuple(listed))  # of the same types


@given(st.text(alphabet="flip|()cutout=8,'\" #\\[]\n.-e_*", max_size=30))
def test_any_text_is_read_or_refused_in_one_line(text):
    try:
        said = str(read(text))
    except UsageError as error:
        said = str(error)
    assert "\n" not in said


@pytest.mark.parametrize("text", ["", "  "])
def test_nothing_is_no_operations(text):
    assert read(text) == ()


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("flip", Flip()),
        ("flip()", Flip()),
        (" cutout( 8 , ) ", Cutout(8)),
        ("cutout(8, 1)", Cutout(8, 1.0)),
        ("cutout(fill=-1e-3, size=+8)", Cutout(8, -0.001)),
        ("mixed(False, 'a|b', (1, 2), ('x',))", Mixed(False, "a|b", (1.0, 2), ("x",))),
        ('mixed(word="é # no comment")', Mixed(word="é # no comment")),
    ],
)
def test_forms(text, operation):
    assert read(text) == (operation,)
    assert repr(read(f"flip|{text}|cutout(1)")) == repr((Flip(), operation, Cutout(1)))


@pytest.mark.parametrize("text", ["flip|", "|flip", "flip||cutout(8)", "|", "flip| |flip"])
def test_empty_parts(text):
    assert refusal(text) == f"data.augment={text!r} has an empty part; drop the extra '|'"


@pytest.mark.parametrize(
    "text",
    [
        "flip flip", "flip,cutout(8)", "flip # always", "(flip)", "(flip|flip)", "flip|(flip)",
        "flip|(flip|flip)", "cutout(8", "cutout(8))", "cutout(8)(8)", "Flip.flip", "1", "'flip'",
        "flip&flip", "flip;", "lambda: 1", "flip\n|flip", "cutout(\n8)", "flip\0", "flip\ud800",
        "(" * 5000, "-" * 100000 + "1", 'mixed(word="\\d")',
    ],
)  # fmt: skip
def test_what_is_no_list_of_operations(text):
    said = refusal(text)
    assert "is not a list of operations; write NAME or NAME(VALUE, ARGUMENT=VALUE)" in said


def test_unknown_names():
    said = refusal("flip|cutuot(8)")
    assert said == (
        "data.augment='cutuot' is unknown: choose one of cutout, flip, mixed; did you mean "
        "'cutout'?"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("flip(1)", "flip takes at most 0 arguments, not 1; write flip"),
        ("cutout", "cutout misses 'size'; write cutout(size: int, fill: float = 0.0)"),
        ("cutout(fill=1)", "cutout misses 'size'"),
        ("cutout(8, sise=1)", "cutout has no argument 'sise'"),
        ("cutout(8, size=8)", "cutout has 'size' twice"),
        ("cutout(size=8, size=8)", "cutout has 'size' twice"),
        ("cutout(8, **{})", "cutout has no argument None"),
        ("cutout(*[8])", "cutout has size=*[8], which is no plain value"),
        ("cutout(eight)", "cutout has size=eight, which is no plain value"),
        ("cutout(2 * 4)", "cutout has size=2 * 4, which is no plain value"),
        ("cutout(8, nan)", "cutout has fill=nan, which is no plain value"),
        ("cutout(8.0)", "size=8.0 of cutout is not int"),
        ("cutout(True)", "size=True of cutout is not int"),
        ("cutout('8')", "size='8' of cutout is not int"),
        ("cutout(None)", "size=None of cutout is not int"),
        ("cutout(8, True)", "fill=True of cutout is not float"),
        ("cutout(8, 1e999)", "fill=inf of cutout is not float"),
        ("cutout(8, 1j)", "fill=1j of cutout is not float"),
        (f"cutout(8, 1{'0' * 400})", "of cutout is not float"),
        ("mixed(1)", "flag=1 of mixed is not bool"),
        ("mixed(word=b'a')", "word=b'a' of mixed is not str"),
        ("mixed(pair=(1, 2, 3))", "pair=(1, 2, 3) of mixed is not tuple[float, int]"),
        ("mixed(pair=[1, 2])", "pair=[1, 2] of mixed is not tuple[float, int]"),
        ("mixed(pair=(1, 2.5))", "pair=(1, 2.5) of mixed is not tuple[float, int]"),
        ("mixed(many=('a', 1))", "many=('a', 1) of mixed is not tuple[str, ...]"),
        ("flip|cutout(size=0)", "data.augment: cutout(size=0): size must be above 0"),
    ],
)
def test_arguments_are_checked(text, said):
    assert said in refusal(text)


def test_signature():
    assert signature("flip", Flip) == "flip"
    assert signature("mixed", Mixed) == (
        "mixed(flag: bool = True, word: str = 'mean', pair: tuple[float, int] = (0.5, 1), "
        "many: tuple[str, ...] = ())"
    )
