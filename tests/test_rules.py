import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxtrain import rules
from jaxtrain.errors import UsageError

NAMES = ["hidden_0/kernel", "hidden_0/bias", "head/kernel", "head/bias"]


def resolve(text: str) -> dict[str, float]:
    return rules.resolve(rules.parse_factors(text, "key"), NAMES, "key")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("kernel=1; .*=0", [1, 0, 1, 0]),
        ("head/kernel=0.5; kernel=1; .*=0", [1, 0, 0.5, 0]),
        (".*=2", [2, 2, 2, 2]),
        ("hidden_0/.*=1; .*=0;", [1, 1, 0, 0]),
        ("(kernel|bias)=3", [3, 3, 3, 3]),
        ("head/(?=k).*=1;.*=0", [0, 0, 1, 0]),
        ("head=10; .*=1", [1, 1, 10, 10]),
        ("hidden_.=1; head/bias=2; .*=0", [1, 1, 0, 2]),
    ],
)
def test_first_match_counts(text, values):
    assert list(resolve(text).values()) == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernel", "is not PATTERN=VALUE"),
        ("=1", "is not PATTERN=VALUE"),
        ("", "holds no rule"),
        (" ; ", "holds no rule"),
        ("ker(nel=1", "not a regular expression"),
        ("kernel=x", "must be a number"),
        ("kernel=-1", "must be a number"),
        ("kernel=nan", "must be a number"),
        ("kernel=inf", "must be a number"),
        ("kernel=1", "no rule matches parameter 'hidden_0/bias'"),
        ("kernels=1; .*=0", "'kernels' matches no parameter"),
        ("ernel=1; .*=0", "'ernel' matches no parameter"),
        ("hea=1; .*=0", "'hea' matches no parameter; the parameters are hidden_0/kernel, "),
        ("head/k=1; .*=0", "'head/k' matches no parameter; "),
        (".*=0; kernel=1", "'kernel' matches no parameter that no rule before it does"),
        ("head=0; head=1; .*=1", "'head' matches no parameter that no rule before it does"),
    ],
)
def test_bad_rules_are_named(text, said):
    with pytest.raises(UsageError, match=r"^key") as caught:
        resolve(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=5))
def test_factors_are_read_back(factors):
    text = ";".join(f"p{i}={factor!r}" for i, factor in enumerate(factors))
    assert [factor for _, factor in rules.parse_factors(text, "key")] == factors


PARTS = st.sampled_from(["stem", "head", "block1", "block2", "kernel", "bias"])
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


@given(st.lists(PATHS, min_size=1, max_size=8, unique=True), st.lists(PARTS, max_size=3))
def test_a_part_of_a_name_takes_all_that_it_is_a_part_of(names, parts):
    """Each parameter is in exactly one rule, the first that has one of its parts."""
    pairs = [*((part, index) for index, part in enumerate(parts)), (".*", -1)]
    first = [
        next((index for index, part in enumerate(parts) if part in name.split("/")), -1)
        for name in names
    ]
    if set(range(len(parts))) <= set(first):
        found = rules.match(pairs, names, "key")
        assert sorted(name for rule in found for name in rule.names) == sorted(names)
        assert list(rules.resolve(pairs, names, "key").values()) == first
    else:
        with pytest.raises(UsageError, match="matches no parameter"):
            rules.match(pairs, names, "key")


def test_the_head_is_the_last_layer_at_the_top():
    assert rules.in_head("head/kernel")
    assert not rules.in_head("block/head/kernel")
    assert not rules.in_head("header/kernel")
