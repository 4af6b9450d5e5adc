"""Memory that nobody has written: which launches and which of the host's calls read it, and what comes of that."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import numpy as np

from .errors import EmulatorError, Fault, HostOrderFault
from .interfaces import Allocator
from .machine.launch import Launch, LaunchOptions
from .ptx.control_flow import ControlFlow
from .sessions import Session
from .state.definedness import A_LAUNCH, MOST_BYTES, MOST_EVENTS, MOST_FOLLOWED, Definedness
from .state.global_memory import GlobalMemory, Region
from .state.pdl_dependency import Footprint

NOBODY = "nothing has written since it was allocated"


class Memory(Protocol):
    """Whose memory it is: the current device's, in the session of the moment."""

    session: Session
    allocator: Allocator | None

    @property
    def memory(self) -> GlobalMemory: ...


class Unwritten:
    """Holds, launch by launch, what has been written since memory was given out."""

    def __init__(self, of: Memory):
        self.of = of
        self.known = True  # all that has been written since is known

    def never_written(self, region: Region) -> bool:
        """Whether there may be words of a region that nobody has written: of an allocator's, if it says so, too."""
        allocator = self.of.allocator
        if region.fresh and allocator is not None and allocator.has_written(region):
            region.fresh, region.written = False, None
        return region.fresh and self.known

    def read_by_host(self, region: Region, runs, where: str, decides: bool) -> HostOrderFault | None:
        """Return what comes of it that the host reads bytes of a region, [n, 2] from and to; a note where they need
        not matter.

        where: names who reads. decides: one number, on which something will depend.
        """
        if not self.never_written(region):
            return None
        words = np.zeros(region.words, bool)
        for first, end in runs:
            words[region.words_of(first, end)] = True
        at = region.unwritten(words)
        if at is None:
            return None
        message = f"the host reads {region.name} at byte {at}, which {region.made_of or NOBODY}"
        kernel = region.made_of.partition(" (")[2]
        found = HostOrderFault("uninitialized-read", message, where, (region.name, where, kernel))
        if not decides or region.any_written(words):  # it may be a struct's padding
            found.note = "never-written"
        return found

    def launched(self, own: Footprint, what: str, launch: tuple, asked: LaunchOptions) -> list[EmulatorError]:
        """A launch has run: say what it has read that nobody had written, and know what it has written. Returns what
        comes of the first.

        launch, asked: what it was made of.
        """
        found = self._tickets(own, launch[0].program)
        followed = None
        fresh = {id(region) for region, _ in own.undefined.values() if self.never_written(region)}
        for region, (reads, writes, _) in own.regions.values():
            if not self.never_written(region):
                continue
            at = region.unwritten(reads & ~writes)
            if at is not None:
                message = f"{what} reads {region.name} at byte {at}, which {region.made_of or NOBODY}"
                kernel = f"kernel {what.partition('(')[2].rstrip(')')}"
                note = HostOrderFault("uninitialized-read", message, kernel, (kernel, region.name))
                note.note = "never-written"
                self.of.session.note(note)
            if region.unwritten(reads) is not None:  # what it writes, too, it may have read before
                followed = followed or self._followed(own, what)
        if followed is not None:
            return found or self._follow(followed, own, launch, asked)
        for region, (_, writes, _) in own.regions.values():
            if region.fresh:
                region.note_written(region.start, region.end, writes)
        for region, words in own.undefined.values():
            if id(region) in fresh:
                region.spoil(words, f"{what} has made of what nothing had written")
        return found

    def _tickets(self, own: Footprint, program: ControlFlow) -> list[EmulatorError]:
        """Of atomics of a launch whose results are used: those that have found what nobody had written."""
        found: list[EmulatorError] = []
        for region, word, who in own.asked.values():
            if not self.never_written(region) or region.written is not None and region.written[word]:
                continue
            instr = who.instruction()
            if instr is None or not program.uses(instr.operands[0]):
                continue
            message = f"{who} uses what it finds in {region.name} at byte {region.byte_of(word)}, "
            message += f"which {region.made_of or NOBODY}"
            found.append(Fault("uninitialized-read", message, who.place()))
        return found

    def _followed(self, own: Footprint, what: str) -> Definedness | None:
        """Return what is undefined before a launch that has run, if it can be run once more to be followed: it has done
        little, and nobody has written what it read, but for what was undefined."""
        session, memory = self.of.session, self.of.memory
        for region in memory.regions:
            self.never_written(region)
        known = Definedness(memory, what, NOBODY)
        written = 0
        for region, (reads, writes, strong) in own.regions.values():
            written += region.size * bool(writes.any())
            before = known.undefined.get(id(region))
            twice = reads & writes if before is None else reads & writes & ~before[1]
            if region.freed or strong.any() or twice.any():
                return None
        if own.events > MOST_EVENTS or written > MOST_BYTES or session.followed > MOST_FOLLOWED:
            return None
        session.followed += max(own.events, A_LAUNCH)
        return known

    def _follow(self, known: Definedness, own: Footprint, launch: tuple, asked: LaunchOptions) -> list[EmulatorError]:
        """Run a launch once more, to see what comes of what nobody has written. Returns what that decides."""
        kept = [(region, region.data.copy()) for region, (_, writes, _) in own.regions.values() if writes.any()]
        options = dataclasses.replace(
            asked, schedule=self.of.session.schedule, checks=False, notes_reads=False, pdl=False, tracked=known
        )
        found: list[EmulatorError] = []
        try:
            code, geometry, params, memory = launch
            Launch(code, geometry, params, memory, options).run()
        except EmulatorError as e:
            found.append(e)
        finally:
            for region, data in kept:
                region.data[:] = data
        for region in known.keep():
            if self.of.allocator is not None:
                self.of.allocator.spoil(region)
        return found if found and found[0].kind == "uninitialized-read" else []
