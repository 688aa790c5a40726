"""Values of every shape that JSON has."""

from __future__ import annotations

from hypothesis import strategies as st

NAMES = st.sampled_from(["password", "name", "value", "card", "id", "auth", "max_tokens", "url", "a.b", "x=sk_live"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        ["4111111111111111", "https://ann:secret123@x", "password=hunter22", "Bearer abc123def456", "password"]
    )
    | st.just(4111111111111111)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))
