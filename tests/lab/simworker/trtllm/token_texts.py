"""Short texts of two tokens, each made by two draws, since drawing long lists is slow."""

from hypothesis import strategies as st


def texts(longest: int) -> st.SearchStrategy[list[int]]:
    """Return texts of 1 to `longest` tokens, 1 and 2, that often share a prefix."""
    return st.builds(
        lambda count, bits: [1 + (bits >> place & 1) for place in range(count)],
        st.integers(1, longest),
        st.integers(0, (1 << longest) - 1),
    )
