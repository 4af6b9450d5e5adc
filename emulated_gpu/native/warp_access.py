"""Accesses of a whole warp to a row of words, 32 of them at a time, which access.py would do a lane at a time.

Most accesses of most kernels are such: the elements of a lane lie behind those of the lane before, and of 32 words one
event has written all, and one has read all. Where that is not so nothing has been changed, and lanes come one by one.
"""

from __future__ import annotations

from ..jit.llvm import LANES
from ..state.lanes import LANE_MASK, SEVERAL
from ..state.shadow import WORD

KEYS = 32  # of words in the table of lanes that are looked at together: of who wrote either half, of who read it
KEYED = KEYS // 4  # those words


def _constants(kind: str, values) -> str:
    return "<" + ", ".join(f"{kind} {v}" for v in values) + ">"


def _splat(name: str, kind: str, value: str, n: int = LANES) -> str:
    """Make %name a vector of n values alike."""
    return f"""%{name}.1 = insertelement <{n} x {kind}> poison, {kind} {value}, i64 0
  %{name} = shufflevector <{n} x {kind}> %{name}.1, <{n} x {kind}> poison, <{n} x i32> zeroinitializer
"""


def _alike(name: str, at: str) -> str:
    """Read 32 numbers of events at an address; %name is the first, %name.alike whether they are all that one."""
    return f"""%{name}.row = load <32 x i32>, ptr {at}, align 4
  %{name} = extractelement <32 x i32> %{name}.row, i64 0
  {_splat(f"{name}.all", "i32", f"%{name}")}  %{name}.differ = icmp ne <32 x i32> %{name}.row, %{name}.all
  %{name}.differ.32 = bitcast <32 x i1> %{name}.differ to i32
  %{name}.alike = icmp eq i32 %{name}.differ.32, 0
"""


def _keys(name: str, words: int, at: str) -> str:
    """Find what lanes have done to some words, %name.kept at %name.at, and how far each key is from the lane's own."""
    lanes = _constants("i32", (k // 4 // words for k in range(KEYS)))
    return f"""%{name}.lane = mul i64 {at}, {KEYED // words}
  %{name}.lane.32 = trunc i64 %{name}.lane to i32
  %{name}.base = or i32 %epoch, %{name}.lane.32
  {_splat(f"{name}.bases", "i32", f"%{name}.base", KEYS)}  %{name}.own = or <{KEYS} x i32> %{name}.bases, {lanes}
  %{name}.ahead = mul i64 {at}, {KEYED}
  %{name}.word = add i64 %q.word, %{name}.ahead
  %{name}.keys = shl i64 %{name}.word, 2
  %{name}.at = at %lane.table i32 %{name}.keys
  %{name}.kept = load <{KEYS} x i32>, ptr %{name}.at, align 4
  %{name}.unlike = xor <{KEYS} x i32> %{name}.kept, %{name}.own
  %{name}.far = sub <{KEYS} x i32> %{name}.unlike, splat (i32 1)
"""


def few_text(write: bool) -> str:
    """LLVM's text for %few: the lanes to go through. Two of those that load from one address do what all of them do."""
    if write:
        return "%few = add i32 %active, 0\n"
    return f"""%few.every = load <32 x i64>, ptr %addresses, align 8
  {_splat("few.lead", "i64", "%address.0")}  %few.differ = icmp ne <32 x i64> %few.every, %few.lead
  %few.differ.32 = bitcast <32 x i1> %few.differ to i32
  %few.elsewhere = and i32 %few.differ.32, %active
  %few.one = icmp eq i32 %few.elsewhere, 0
  %few.less = sub i32 %active, 1
  %few.others = and i32 %active, %few.less
  %few.others.less = sub i32 %few.others, 1
  %few.rest = and i32 %few.others, %few.others.less
  %few.two = xor i32 %active, %few.rest
  %few = select i1 %few.one, i32 %few.two, i32 %active
"""


def spread_text() -> str:
    """LLVM's text that gives what those have loaded of an element to all lanes."""
    return f"""br i1 %few.one, label %spread, label %element.done
spread:
  %first.at = getelementptr iBITS, ptr %values.k, i32 %lane.0
  %first.value = load iBITS, ptr %first.at
  {_splat("spread.all", "iBITS", "%first.value")}  %those.active = bitcast i32 %active to <32 x i1>
  %spread.to = select <32 x i1> %those.active, <32 x iBITS> %spread.all, <32 x iBITS> zeroinitializer
  store <32 x iBITS> %spread.to, ptr %values.k, align 8
  br label %element.done
"""


def row_text(write: bool, shared: bool, size: int, count: int) -> str:
    """LLVM's text behind label quick of an access: a row is done and leads to %stored, all else to %slowly."""
    words, row, keys = size * count // WORD, LANES * size * count, f"<{KEYS} x i32>"
    side = 0 if write else 2  # of a word's keys: where such an access is kept
    bounds = _constants("i32", (SEVERAL - 1 if k % 4 < 2 else LANE_MASK if write else 0 for k in range(KEYS)))
    noted = _constants("i1", ("true" if side <= k % 4 < side + 2 else "false" for k in range(KEYS)))
    text = f"""{_splat("q.lead", "i64", "%address.0")}  %q.every = load <32 x i64>, ptr %addresses, align 8
  %q.row = add <32 x i64> %q.lead, {_constants("i64", range(0, row, size * count))}
  %q.differ = icmp ne <32 x i64> %q.every, %q.row
  %q.differ.32 = bitcast <32 x i1> %q.differ to i32
  %q.is.row = icmp eq i32 %q.differ.32, 0
  %q.is.full = icmp eq i32 %active, -1
  %q.present.64 = field %c ACTIVE
  %q.is.whole = icmp eq i64 %q.present.64, {2**32 - 1}
  %q.end = add i64 %address.0, {row}
  %q.above = icmp uge i64 %address.0, %lo
  %q.below = icmp ule i64 %q.end, %hi
  %q.odd = and i64 %address.0, BYTES_LESS_1
  %q.even = icmp eq i64 %q.odd, 0
  %q.1 = and i1 %q.is.row, %q.is.full
  %q.2 = and i1 %q.1, %q.is.whole
  %q.3 = and i1 %q.2, %q.above
  %q.4 = and i1 %q.3, %q.below
  %q.5 = and i1 %q.4, %q.even
  %q.parted = xor i1 %parted, true
  %q.6 = and i1 %q.5, %q.parted
  br i1 %q.6, label %q.inside, label %slowly
q.inside:
"""
    if write and shared:
        text += """  %q.busy.lo = field %w BUSY_LO
  %q.busy.hi = field %w BUSY_HI
  %q.reaches = icmp ugt i64 %q.end, %q.busy.lo
  %q.begins = icmp ult i64 %address.0, %q.busy.hi
  %q.busy = and i1 %q.reaches, %q.begins
  br i1 %q.busy, label %slowly, label %q.free
q.free:
"""
    text += f"""  %q.slots.kept = alloca [{words} x i64]
  %q.from = sub i64 %address.0, %origin
  %q.word = lshr i64 %q.from, 2
  br i1 %shadowed, label %q.chunk, label %q.move
q.chunk:
  %q.j = phi i64 [0, PLACE_OF_CHUNK], [%q.j.next, %q.fine]
  %q.ahead = mul i64 %q.j, {LANES}
  %q.w = add i64 %q.word, %q.ahead
"""
    text = text.replace("PLACE_OF_CHUNK", "%q.free" if write and shared else "%q.inside")
    if shared and not write:
        text += f"""  %q.valid.base = field %w VALID
  %q.byte.ahead = mul i64 %q.j, {LANES * WORD}
  %q.byte = add i64 %address.0, %q.byte.ahead
  %q.p.valid = at %q.valid.base i8 %q.byte
  %q.valid = load <{LANES} x i{8 * WORD}>, ptr %q.p.valid, align 4
  %q.missing = icmp ne <{LANES} x i{8 * WORD}> %q.valid, splat (i{8 * WORD} {0x01010101})
  %q.missing.32 = bitcast <{LANES} x i1> %q.missing to i32
  %q.all.valid = icmp eq i32 %q.missing.32, 0
  br i1 %q.all.valid, label %q.written, label %slowly
q.written:
"""
    if not shared and not write:
        text += f"""  br i1 %settles, label %q.settled, label %q.written
q.settled:
  %q.p.settled = at %settled i8 %q.w
  %q.settles = load <{LANES} x i8>, ptr %q.p.settled, align 1
  %q.some.settled = icmp ne <{LANES} x i8> %q.settles, zeroinitializer
  %q.some.settled.32 = bitcast <{LANES} x i1> %q.some.settled to i32
  %q.none.settled = icmp eq i32 %q.some.settled.32, 0
  br i1 %q.none.settled, label %q.written, label %slowly
q.written:
"""
    found = "%q.cleared" if write else "%slowly"
    text += f"""  %q.p.written = at %written i32 %q.w
  {_alike("q.writer", "%q.p.written")}  %q.before = call i1 @known(ptr %c, i32 %q.writer)
  %q.after.write = and i1 %q.before, %q.writer.alike
  br i1 %q.after.write, label %q.slots, label %slowly
q.slots:
  br label %q.slot
q.slot:
  %q.k = phi i64 [0, %q.slots], [%q.k.next, %q.further]
  %q.offset = mul i64 %q.k, %places
  %q.index = add i64 %q.offset, %q.w
  %q.p.read = at %reads i32 %q.index
  {_alike("q.read", "%q.p.read")}  br i1 %q.read.alike, label %q.ask, label %slowly
q.ask:
"""
    if write:
        text += """  %q.none.here = icmp eq i32 %q.read, 0
  br i1 %q.none.here, label %q.cleared, label %q.ask.known
q.ask.known:
  %q.read.known = call i1 @known(ptr %c, i32 %q.read)
  br i1 %q.read.known, label %q.further, label %slowly
"""
    else:
        text += """  %q.read.known = call i1 @known(ptr %c, i32 %q.read)
  br i1 %q.read.known, label %q.cleared, label %q.further
"""
    text += f"""q.further:
  %q.k.next = add i64 %q.k, 1
  %q.more.slots = icmp ult i64 %q.k.next, %slots
  br i1 %q.more.slots, label %q.slot, label {found}
q.cleared:
  %q.p.kept = getelementptr i64, ptr %q.slots.kept, i64 %q.j
  store i64 {"%q.w" if write else "%q.index"}, ptr %q.p.kept
"""
    text += f"""  br label %q.fine
q.fine:
  %q.j.next = add i64 %q.j, 1
  %q.more = icmp ult i64 %q.j.next, {words}
  br i1 %q.more, label %q.chunk, label %q.checked
q.checked:
"""
    if shared:
        text += f"""  br i1 %lanes.kept, label %q.lanes, label %q.act
q.lanes:
  %q.g = phi i64 [0, %q.checked], [%q.g.next, %q.apart]
  {_keys("ql", words, "%q.g")}  %ql.others = icmp ult <{KEYS} x i32> %ql.far, {bounds}
  %ql.bits = bitcast <{KEYS} x i1> %ql.others to i{KEYS}
  %ql.clash = icmp ne i{KEYS} %ql.bits, 0
  br i1 %ql.clash, label %slowly, label %q.apart
q.apart:
  %q.g.next = add i64 %q.g, 1
  %q.g.more = icmp ult i64 %q.g.next, {words * LANES // KEYED}
  br i1 %q.g.more, label %q.lanes, label %q.act
"""
    else:
        text += "  br label %q.act\n"
    text += f"""q.act:
  call void @event(ptr %c, i32 %step, i8 MARK)
  %q.number.64 = field %c NOW
  %q.number = trunc i64 %q.number.64 to i32
  {_splat("q.numbers", "i32", "%q.number")}  br label %q.note
q.note:
  %q.i = phi i64 [0, %q.act], [%q.i.next, %q.noted]
  %q.i.ahead = mul i64 %q.i, {LANES}
  %qn.w = add i64 %q.word, %q.i.ahead
"""
    if not shared:
        text += f"""  %q.used = field %w USED
  %q.is.used = icmp ne i64 %q.used, 0
  br i1 %q.is.used, label %q.depends, label %q.mark
q.depends:
  %q.p.used = at %q.used i8 %qn.w
  store <{LANES} x i8> splat (i8 1), ptr %q.p.used, align 1
  br label %q.mark
q.mark:
""".replace("USED", "WROTE" if write else "WAS_READ")
    if write:
        text += """  %q.at.written = at %written i32 %qn.w
  store <32 x i32> %q.numbers, ptr %q.at.written, align 4
  br label %q.forget
q.forget:
  %q.f = phi i64 [0, FORGET_FROM], [%q.f.next, %q.forgotten]
  %q.f.offset = mul i64 %q.f, %places
  %q.f.index = add i64 %q.f.offset, %qn.w
  %q.f.at = at %reads i32 %q.f.index
  %q.f.read = load i32, ptr %q.f.at
  %q.f.none = icmp eq i32 %q.f.read, 0
  br i1 %q.f.none, label %q.marked, label %q.forgotten
q.forgotten:
  store <32 x i32> zeroinitializer, ptr %q.f.at, align 4
  %q.f.next = add i64 %q.f, 1
  %q.f.more = icmp ult i64 %q.f.next, %slots
  br i1 %q.f.more, label %q.forget, label %q.marked
q.marked:
""".replace("FORGET_FROM", "%q.note" if shared else "%q.mark")
    else:
        text += """  %q.p.slot = getelementptr i64, ptr %q.slots.kept, i64 %q.i
  %q.kept.index = load i64, ptr %q.p.slot
  %q.at.read = at %reads i32 %q.kept.index
  store <32 x i32> %q.numbers, ptr %q.at.read, align 4
"""
    if shared or write:
        text += "  br label %q.noted\n"
    else:
        text += f"""  br i1 %settles, label %q.settle, label %q.noted
q.settle:
  %q.s = phi i64 [0, %q.mark], [%q.s.next, %q.settle]
  %q.s.word = add i64 %qn.w, %q.s
  call void @settle(ptr %c, i64 %settled, i64 %written, i64 %reads, i64 %q.s.word)
  %q.s.next = add i64 %q.s, 1
  %q.s.more = icmp ult i64 %q.s.next, {LANES}
  br i1 %q.s.more, label %q.settle, label %q.noted
"""
    text += f"""q.noted:
  %q.i.next = add i64 %q.i, 1
  %q.i.more = icmp ult i64 %q.i.next, {words}
  br i1 %q.i.more, label %q.note, label %q.kept
q.kept:
"""
    if shared:
        text += f"""  br i1 %lanes.kept, label %q.note.lanes, label %q.move
q.note.lanes:
  %q.h = phi i64 [0, %q.kept], [%q.h.next, %q.note.lanes]
  {_keys("qn", words, "%q.h")}  %q.other = icmp ult {keys} %qn.far, splat (i32 {LANE_MASK})
  %q.many = or i32 %epoch, {SEVERAL}
  {_splat("q.manys", "i32", "%q.many", KEYS)}  %q.fresh = select <{KEYS} x i1> %q.other, {keys} %q.manys, {keys} %qn.own
  %q.new = select <{KEYS} x i1> {noted}, {keys} %q.fresh, {keys} %qn.kept
  store {keys} %q.new, ptr %qn.at, align 4
  %q.h.next = add i64 %q.h, 1
  %q.h.more = icmp ult i64 %q.h.next, {words * LANES // KEYED}
  br i1 %q.h.more, label %q.note.lanes, label %q.move
"""
    else:
        text += "  br label %q.move\n"
    text += "q.move:\n"
    if shared and write:
        text += f"""  %q.valid.base = field %w VALID
  %q.make.valid = at %q.valid.base i8 %address.0
  call void @llvm.memset.p0.i64(ptr %q.make.valid, i8 1, i64 {row}, i1 false)
"""
    text += "  %q.data = at %data i8 %address.0\n"
    if count == 1:
        source, target = ("%values", "%q.data") if write else ("%q.data", "%values")
        text += f"""  %q.moved = load <32 x iBITS>, ptr {source}, align {size}
  store <32 x iBITS> %q.moved, ptr {target}, align {size}
  br label %stored
"""
    else:
        source, target = ("%q.m.value", "%q.m.data") if write else ("%q.m.data", "%q.m.value")
        text += f"""  br label %q.m
q.m:
  %q.m.k = phi i64 [0, %q.move], [%q.m.next, %q.m]
  %q.m.lane = udiv i64 %q.m.k, {count}
  %q.m.element = urem i64 %q.m.k, {count}
  %q.m.row = mul i64 %q.m.element, {LANES}
  %q.m.place = add i64 %q.m.row, %q.m.lane
  %q.m.value = getelementptr iBITS, ptr %values, i64 %q.m.place
  %q.m.data = getelementptr iBITS, ptr %q.data, i64 %q.m.k
  %q.m.moved = load iBITS, ptr {source}, align {size}
  store iBITS %q.m.moved, ptr {target}, align {size}
  %q.m.next = add i64 %q.m.k, 1
  %q.m.more = icmp ult i64 %q.m.next, {LANES * count}
  br i1 %q.m.more, label %q.m, label %stored
"""
    return text
