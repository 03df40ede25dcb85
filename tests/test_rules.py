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
        (".*=0; kernel=1", "'kernel' matches no parameter"),
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
