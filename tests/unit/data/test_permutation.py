import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.permutation import permute


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**32), epoch=st.integers(0, 2**20))
def test_every_item_once(n: int, seed: int, epoch: int) -> None:
    assert np.array_equal(np.sort(permute(np.arange(n), n, (seed, epoch))), np.arange(n))


@given(n=st.integers(2, 10**12), seed=st.integers(0, 100), data=st.data())
def test_one_position_by_itself_equals_the_batch(n: int, seed: int, data: st.DataObject) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)))
    together = permute(positions, n, (seed, 0))
    assert ((together >= 0) & (together < n)).all()
    assert [int(permute(positions[at : at + 1], n, (seed, 0))[0]) for at in range(len(positions))] == together.tolist()


def test_order_depends_on_every_part_of_the_key() -> None:
    orders = {tuple(permute(np.arange(100), 100, key)) for key in ((0, 0), (0, 1), (1, 0), (1, 1))}
    assert len(orders) == 4


def test_it_shuffles() -> None:
    order = permute(np.arange(10_000), 10_000, (0, 0))
    assert abs(np.corrcoef(np.arange(10_000), order)[0, 1]) < 0.03  # three standard deviations
    assert (np.abs(np.diff(order)) == 1).sum() < 10  # neighbours part


def test_impossible_positions_are_refused() -> None:
    with pytest.raises(ValueError, match="0 items"):
        permute(np.array([0]), 0, (0,))
    with pytest.raises(ValueError, match="position 5 of 5"):
        permute(np.array([5]), 5, (0,))
