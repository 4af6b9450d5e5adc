"""Normal numbers of machine code: Philox's own known answers, and the numbers that those words give by definition."""

import numpy as np
import pytest

from emulated_gpu.native import normal

KEY = 0x0123456789ABCDEF


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10, in Python's integers."""
    for _ in range(normal.ROUNDS):
        a, b = (m * c for m, c in zip(normal.MULTIPLIERS, counter[::2], strict=True))
        counter = [b >> 32 ^ counter[1] ^ key[0], b & 0xFFFFFFFF, a >> 32 ^ counter[3] ^ key[1], a & 0xFFFFFFFF]
        key = [(k + step) & 0xFFFFFFFF for k, step in zip(key, normal.KEY_STEPS, strict=True)]
    return counter


# kat_vectors of Random123, https://github.com/DEShawResearch/random123
@pytest.mark.parametrize(
    "word, out",
    [(0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"), (0xFFFFFFFF, "408f276d 41c83b0e a20bc7c6 6d5451fd")],
)
def test_the_reference_is_philox(word, out):
    assert philox([word] * 4, [word] * 2) == [int(w, 16) for w in out.split()]


def expected(n: int) -> np.ndarray:
    """float64 [4] that block n of a key stands for: of two words each, a radius and an angle."""
    radius, angle = np.array(philox([n & 0xFFFFFFFF, n >> 32, 0, 0], [KEY & 0xFFFFFFFF, KEY >> 32])).reshape(2, 2).T
    r = np.sqrt(-2 * np.log(radius * 2.0**-32 + 2.0**-33))
    return np.stack([r * np.cos(2 * np.pi * angle * 2.0**-32), r * np.sin(2 * np.pi * angle * 2.0**-32)], 1).ravel()


@pytest.mark.parametrize("first", [0, (2**33 + 5) * normal.LANES])  # blocks of one word, and of two
def test_numbers_are_those_of_their_places(first):
    drawn = np.empty(3 * normal.TURN - 7, np.float32)
    normal.draw(drawn, KEY, 4 * first)
    wanted = np.array([expected(first + n) for n in range(3 * normal.LANES)])
    # each lane has a block; a turn stores its four vectors one behind the other
    wanted = wanted.reshape(3, normal.LANES, 4).transpose(0, 2, 1).ravel()[: len(drawn)]
    np.testing.assert_allclose(drawn, wanted, rtol=2e-6, atol=1e-6)  # some roundings of float32, whose sums are below 6
    second = np.empty(normal.TURN, np.float32)
    normal.draw(second, KEY, 4 * first + normal.TURN)
    assert np.array_equal(second, drawn[normal.TURN : 2 * normal.TURN])


def test_the_rule_as_python_draws_the_same():
    drawn, run = np.empty(2 * normal.TURN, np.float32), np.empty(2 * normal.TURN, np.float32)
    normal.draw(drawn, KEY, 8 * normal.TURN)
    normal.draw_turns(normal.pointer(run), 8, 2, KEY & 0xFFFFFFFF, KEY >> 32)
    assert drawn.tobytes() == run.tobytes()


def test_moments():
    drawn = np.empty(1 << 20, np.float32)
    normal.draw(drawn, 7)
    x = drawn.astype(np.float64)
    moments = [abs(np.mean(x**k) - m) for k, m in ((1, 0), (2, 1), (3, 0), (4, 3))]
    assert np.all(np.array(moments) < 5 * np.sqrt(np.array([1, 2, 15, 96]) / len(x)))  # five standard deviations
    assert np.all(np.isfinite(drawn)) and 4.5 < np.abs(drawn).max() < 6.8
