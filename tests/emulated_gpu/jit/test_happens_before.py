"""Machine code that asks shadows of memory (jit/happens_before.py) against their Python: the same conflicts and
notes."""

import numpy as np
import pytest

from emulated_gpu.jit import happens_before
from emulated_gpu.state import shadow
from emulated_gpu.state.order import ASYNC_SHARED, EVER, GENERIC, KNOWN, STRONG, Actor, Order, Released, Space

PLACES = 48


def history(seed: int) -> tuple[shadow.Plane, list[Actor], list]:
    """A plane on which two clusters have worked, their warps, who know some of it, and keys of other components."""
    rng, order = np.random.default_rng(seed), Order()
    spaces = [Space(order, warps=4), Space(order, warps=4)]
    actors = [Actor(uid, space) for space in spaces for uid in (1, 2, 3, 4)]
    keys = [space.key(name) for space in spaces for name in ("mma", "copy")]
    plane = shadow.Plane(order, PLACES, 4)
    events = []
    for _ in range(40):
        key = (keys + [actor.key for actor in actors])[rng.integers(12)]
        key = key if key[0] is spaces[0] or rng.random() < 0.3 else keys[0]
        number = order.next(key, marks=int(rng.choice([0, GENERIC, GENERIC | STRONG])))
        events.append((key, number))
        first, end = sorted(rng.integers(0, PLACES, 2).tolist())
        if rng.random() < 0.5:
            plane.written[first:end] = number
        else:
            plane.note_read(slice(first, end), key, number)
    for actor in actors:
        for key, number in events:
            if rng.random() < 0.9 and key[0] is actor.space:
                for row in (KNOWN, ASYNC_SHARED):
                    clock = actor.knowledge.clock
                    clock[row, key[1]] = max(clock[row, key[1]], number)
    for actor in actors[: 4 * int(rng.integers(2))]:  # what they know of the other cluster, which all take over
        actor.learn(actors[5].knowledge)
    return plane, actors, keys


def places(seed: int):
    rng = np.random.default_rng(seed)
    first, end = sorted(rng.integers(0, PLACES, 2).tolist())
    index = rng.permutation(PLACES)[: end - first]
    index.flags.writeable = bool(seed % 4)
    return slice(first, end) if seed % 2 else index.astype(np.uint64) if seed % 10 == 0 else index


def asked(seed: int) -> list:
    """The answers to all questions about a history, and the reads that are noted at the end."""
    plane, actors, keys = history(seed)
    index, answers = places(seed), []
    for actor in actors[:2]:
        for but in ({}, {keys[0]: EVER}, {keys[0]: 20, keys[1]: 30}, {keys[0]: 9, keys[1]: 9, actors[2].key: EVER}):
            answers.append(plane.unordered_write(index, actor, but=but))
            answers.append(plane.unordered_write(index, actor, ASYNC_SHARED, but=but, generic=True))
            answers += [*plane.unordered_reads(index, actor, but)] or [None]
        seen = plane.unordered_write(index, actor) or plane.unordered_write(index, actor, ASYNC_SHARED, generic=True)
        answers.append(plane.shows_async(index, actor, ASYNC_SHARED) or seen is None)
        answers.append(plane.unordered_write(index, actor, weak=True))
        answers += [*plane.unordered_reads(index, actor, row=ASYNC_SHARED, limit=actor.space.warps)] or [None]
        plane.note_read(index, actor.key, plane.order.next(actor.key), actor)
        plane.note_read(index, keys[0], plane.order.next(keys[0]))
        answers.append(plane.reads.tolist())
    return answers


class InNumPy:
    """Says of nothing that it is certain, and notes reads as Plane's docstring has it."""

    def __init__(self, planes: list[shadow.Plane]):
        self.planes = planes

    def all_known(self, *_, **__) -> bool:
        return False

    def note_read(self, rows, index, key, number: int, order, by) -> bool:
        (plane,) = (plane for plane in self.planes if plane._reads_at is rows)
        places = np.arange(PLACES)[index]
        numbers = plane.reads[:, places]
        over = (numbers == 0) | plane._of(numbers, key) if by is None else ~by.unknown(numbers)
        if not over.any(axis=0).all():
            return False
        plane.reads[over.argmax(axis=0), places] = number
        return True


@pytest.fixture(params=["machine code", "rules as Python"])
def answered(monkeypatch, request):
    """Answers by Python alone and by the rules, and how often those said yes."""
    functions, yes = happens_before.Happened(), []
    counting = happens_before.Happened.__new__(happens_before.Happened)
    counting.__dict__ = dict(vars(functions))
    for name in ("knows", "note_reads"):
        compiled = request.param == "machine code"
        function = getattr(functions if compiled else happens_before, name)
        setattr(counting, name, lambda *a, function=function: yes.append(function(*a)) or yes[-1])

    planes: list[shadow.Plane] = []
    monkeypatch.setattr(shadow.Plane, "__init__", lambda plane, *a, made=shadow.Plane.__init__: (
        planes.append(plane), made(plane, *a))[1])  # fmt: skip

    def both(seed: int):
        monkeypatch.setattr(shadow, "happened", lambda: InNumPy(planes))
        python = asked(seed)
        monkeypatch.setattr(shadow, "happened", lambda: counting)
        return python, asked(seed), yes

    return both


def test_answers_are_those_of_the_python(answered):
    conflicts = []
    for seed in range(30):
        python, native, yes = answered(seed)
        assert native == python, seed
        conflicts += [answer for answer in python if isinstance(answer, shadow.Conflict)]
    assert 0.2 < np.mean(yes) < 0.9  # both answers come
    assert len(conflicts) > 150
    assert {conflict.use for conflict in conflicts} == {"read", "write"}


def test_an_exception_is_of_one_cluster(answered):
    """Components of two clusters have the same numbers."""
    order = Order()
    mine, other = Space(order, warps=4), Space(order, warps=4)
    plane, actor = shadow.Plane(order, 4, 4), Actor(1, mine)
    key, elsewhere = mine.key("mma"), other.key("mma")
    assert key[1] == elsewhere[1]
    plane.written[:] = order.next(elsewhere)
    assert happens_before.Happened().all_known(plane._written_at, slice(0, 4), actor, KNOWN, {key: EVER}) is False


def test_who_polls_learns_again_only_what_is_new():
    """Two clusters release at one address, and a third one looks: what it knows of others, its warps have as one."""
    order = Order()
    spaces = [Space(order, 2) for _ in range(3)]
    first, second, *pollers = Actor(1, spaces[0]), Actor(1, spaces[1]), Actor(1, spaces[2]), Actor(2, spaces[2])
    address, learnt = Released(), []
    for releaser in (first, second, first):
        number = order.next(releaser.key)
        address.add(releaser.released())
        for poller in pollers * 2:
            before = poller.knowledge.elsewhere
            address.teach(poller)
            learnt.append(poller.knowledge.elsewhere is not before)
            assert poller.knowledge.known(releaser.key) == number
        assert first.knowledge.elsewhere == second.knowledge.elsewhere == {}
    assert learnt == [True, True, False, False] * 3
    barrier = Released()
    for poller in pollers:
        barrier.add_all_of(poller)
    for poller in pollers:
        barrier.teach(poller)
    held = pollers[0].knowledge.elsewhere
    assert held is pollers[1].knowledge.elsewhere
    spaces[2].actors[1].passes(slice(1, 2))
    assert pollers[0].knowledge.elsewhere is held and not any(clock[1].any() for clock in held.values())


def test_what_is_handed_on_at_one_barrier_stays_what_it_was_there():
    """Two of three warps exit, the second after a barrier was told of the first: it hands on the first alone."""
    space = Space(Order(), 3)
    warps = [Actor(uid, space) for uid in (1, 2, 3)]
    numbers = [space.order.next(warp.key) for warp in warps]
    gone, barrier = Released(), Released()
    known = [warp.released() for warp in warps]
    gone.add(known[0])
    barrier.add_of(gone)
    gone.add(known[1])
    barrier.add(known[2])

    def knows(released: Released) -> list[bool]:
        return [released.knowledge.known(warp.key) >= number for warp, number in zip(warps, numbers, strict=True)]

    assert knows(gone) == [True, True, False]
    assert knows(barrier) == [True, False, True]
    late = Released()
    late.add_of(gone)
    gone.add(known[2])
    assert (knows(late), knows(gone)) == ([True, True, False], [True, True, True])
    assert [k.known(w.key) for k, w in zip(known, warps[1:] + warps[:1])] == [0, 0, 0]  # nobody's own has changed


def test_what_is_handed_on_uncopied_is_the_same():
    """Warps of one cluster come to a barrier with what they know of each other and of another cluster."""
    order = Order()
    space, other = Space(order, 3), Space(order, 1)
    warps, far = [Actor(uid, space) for uid in (1, 2, 3)], Actor(1, other)
    order.next(far.key)
    warps[1].learn(far.released())
    copied, uncopied = Released(), Released()
    for warp in warps:
        order.next(warp.key)
        copied.add(warp.released())
        uncopied.add_all_of(warp)
        order.next(warp.key)  # which it does not hand on
    space.key("one more")  # clocks are wider from now on
    assert (copied.knowledge.clock == uncopied.knowledge.clock).all()
    assert copied.knowledge.elsewhere.keys() == uncopied.knowledge.elsewhere.keys() == {other}
    known = [uncopied.knowledge.known(warp.key) for warp in warps]
    assert known == [2, 4, 6] and warps[0].knowledge.known(warps[0].key) > 7
