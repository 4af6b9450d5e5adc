"""Loads and stores in LLVM's assembly: the data, and what the shadows of state/ keep of an access.

What is plain is done here: lanes inside one range of memory, every byte of it written, nobody else's access in the way.
Anything else (a fault, a conflict, an operation in flight) changes nothing and is left to Python, which says what it
is. So this file knows of shadows (state/shadow.py) how they are kept, and no rule that they do not have.
"""

from __future__ import annotations

import functools
import re

from ..state.lanes import HALF, LANE_MASK, SEVERAL
from ..state.order import GENERIC
from ..state.shadow import WORD
from . import context_fields
from .warp_access import few_text, row_text, spread_text

# Assembly with three words more: `%x = field %base NAME` loads an int64 of the context or of a window, `%p = at %base
# TYPE %index` is the address of an element of the array at an address, `put %base NAME VALUE` stores an int64.
# `known`: whether an event has happened before what the warp does now. `slot`: where a read of a word is kept, by its
# offset in the shadow, or -1. `clear`: whether a write of a word is after all that was done there.
SHADOW = """
define internal i1 @known(ptr %c, i32 %number) {
  %none = icmp eq i32 %number, 0
  br i1 %none, label %yes, label %look
look:
  %n = sext i32 %number to i64
  %spaces = field %c SPACE
  %at.space = at %spaces i32 %n
  %space = load i32, ptr %at.space
  %own = field %c OWN_SPACE
  %own.space = trunc i64 %own to i32
  %same = icmp eq i32 %space, %own.space
  br i1 %same, label %here, label %away
away:
  %until = field %c UNTIL
  %alone = icmp eq i64 %until, 0
  br i1 %alone, label %no, label %history
history:
  %devices = field %c DEVICES
  %away.space = sext i32 %space to i64
  %at.device = at %devices i32 %away.space
  %device = load i32, ptr %at.device
  %away.device = sext i32 %device to i64
  %at.until = at %until i32 %away.device
  %last = load i32, ptr %at.until
  %over = icmp sle i32 %number, %last
  ret i1 %over
here:
  %components = field %c COMPONENT
  %at.component = at %components i32 %n
  %component = load i32, ptr %at.component
  %of = sext i32 %component to i64
  %count = field %c KNOWN_COUNT
  %inside = icmp ult i64 %of, %count
  br i1 %inside, label %ask, label %no
ask:
  %clock = field %c CLOCK
  %at.clock = at %clock i32 %of
  %seen = load i32, ptr %at.clock
  %before = icmp sle i32 %number, %seen
  ret i1 %before
yes:
  ret i1 true
no:
  ret i1 false
}
define internal i64 @slot(ptr %c, i64 %reads, i64 %slots, i64 %places, i64 %word) {
entry:
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %further]
  %offset = mul i64 %k, %places
  %index = add i64 %offset, %word
  %p = at %reads i32 %index
  %number = load i32, ptr %p
  %before = call i1 @known(ptr %c, i32 %number)
  br i1 %before, label %found, label %further
further:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %slots
  br i1 %more, label %loop, label %none
found:
  ret i64 %index
none:
  ret i64 -1
}
define internal i1 @clear(ptr %c, i64 %written, i64 %reads, i64 %slots, i64 %places, i64 %word) {
entry:
  %p = at %written i32 %word
  %number = load i32, ptr %p
  %before = call i1 @known(ptr %c, i32 %number)
  br i1 %before, label %loop, label %no
loop:
  %k = phi i64 [0, %entry], [%next, %further]
  %offset = mul i64 %k, %places
  %index = add i64 %offset, %word
  %q = at %reads i32 %index
  %read = load i32, ptr %q
  %none = icmp eq i32 %read, 0
  br i1 %none, label %yes, label %ask
ask:
  %known = call i1 @known(ptr %c, i32 %read)
  br i1 %known, label %further, label %no
further:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %slots
  br i1 %more, label %loop, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}
define internal void @overwritten(i64 %written, i64 %reads, i64 %slots, i64 %places, i64 %word, i32 %number) {
entry:
  %p = at %written i32 %word
  store i32 %number, ptr %p
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %further]
  %offset = mul i64 %k, %places
  %index = add i64 %offset, %word
  %q = at %reads i32 %index
  %read = load i32, ptr %q
  %none = icmp eq i32 %read, 0
  br i1 %none, label %end, label %further
further:
  store i32 0, ptr %q
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %slots
  br i1 %more, label %loop, label %end
end:
  ret void
}
define internal void @event(ptr %c, i32 %step, i8 %mark) {
  %now = field %c NOW
  %next = add i64 %now, 1
  put %c NOW %next
  %components = field %c COMPONENT
  %p = at %components i32 %next
  %uid = field %c UID
  %uid.32 = trunc i64 %uid to i32
  store i32 %uid.32, ptr %p
  %spaces = field %c SPACE
  %q = at %spaces i32 %next
  %own = field %c OWN_SPACE
  %own.32 = trunc i64 %own to i32
  store i32 %own.32, ptr %q
  %marks = field %c MARKS
  %r = at %marks i8 %next
  store i8 %mark, ptr %r
  %count = field %c EVENT_COUNT
  %events = field %c EVENTS
  %s = at %events i32 %count
  store i32 %step, ptr %s
  %more = add i64 %count, 1
  put %c EVENT_COUNT %more
  ret void
}
define internal i1 @part(ptr %w, i64 %word) {
entry:
  %split = field %w SPLIT
  %p.split = at %split i8 %word
  %is = load i8, ptr %p.split
  %apart = icmp ne i8 %is, 0
  br i1 %apart, label %yes, label %ask
ask:
  %slots = field %w SLOTS
  %b.slots = field %w B_SLOTS
  %fits = icmp ule i64 %slots, %b.slots
  br i1 %fits, label %begin, label %no
begin:
  store i8 1, ptr %p.split
  %written = field %w WRITTEN
  %b.written = field %w B_WRITTEN
  %reads = field %w READS
  %b.reads = field %w B_READS
  %places = field %w PLACES
  %b.places = field %w B_PLACES
  %byte = shl i64 %word, 2
  %p.written = at %written i32 %word
  %number = load i32, ptr %p.written
  %p.b = at %b.written i32 %byte
  %one = insertelement <4 x i32> poison, i32 %number, i32 0
  %four = shufflevector <4 x i32> %one, <4 x i32> poison, <4 x i32> zeroinitializer
  store <4 x i32> %four, ptr %p.b, align 4
  br label %loop
loop:
  %k = phi i64 [0, %begin], [%next, %loop]
  %offset = mul i64 %k, %places
  %index = add i64 %offset, %word
  %q = at %reads i32 %index
  %read = load i32, ptr %q
  %b.offset = mul i64 %k, %b.places
  %b.index = add i64 %b.offset, %byte
  %q.b = at %b.reads i32 %b.index
  %r.one = insertelement <4 x i32> poison, i32 %read, i32 0
  %r.four = shufflevector <4 x i32> %r.one, <4 x i32> poison, <4 x i32> zeroinitializer
  store <4 x i32> %r.four, ptr %q.b, align 4
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %slots
  br i1 %more, label %loop, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}
define internal i1 @parts.load(ptr %c, ptr %w, i64 %word) {
entry:
  %written = field %w B_WRITTEN
  %reads = field %w B_READS
  %slots = field %w B_SLOTS
  %places = field %w B_PLACES
  %first = shl i64 %word, 2
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %further]
  %byte = add i64 %first, %k
  %p = at %written i32 %byte
  %writer = load i32, ptr %p
  %before = call i1 @known(ptr %c, i32 %writer)
  br i1 %before, label %ask, label %no
ask:
  %slot = call i64 @slot(ptr %c, i64 %reads, i64 %slots, i64 %places, i64 %byte)
  %nowhere = icmp slt i64 %slot, 0
  br i1 %nowhere, label %no, label %further
further:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, 4
  br i1 %more, label %loop, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}
define internal i1 @parts.store(ptr %c, ptr %w, i64 %word) {
entry:
  %written = field %w B_WRITTEN
  %reads = field %w B_READS
  %slots = field %w B_SLOTS
  %places = field %w B_PLACES
  %first = shl i64 %word, 2
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %further]
  %byte = add i64 %first, %k
  %fine = call i1 @clear(ptr %c, i64 %written, i64 %reads, i64 %slots, i64 %places, i64 %byte)
  br i1 %fine, label %further, label %no
further:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, 4
  br i1 %more, label %loop, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}
define internal void @parts.loaded(ptr %c, ptr %w, i64 %word, i32 %number) {
entry:
  %written = field %w B_WRITTEN
  %reads = field %w B_READS
  %slots = field %w B_SLOTS
  %places = field %w B_PLACES
  %first = shl i64 %word, 2
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %further]
  %byte = add i64 %first, %k
  %slot = call i64 @slot(ptr %c, i64 %reads, i64 %slots, i64 %places, i64 %byte)
  %p = at %reads i32 %slot
  store i32 %number, ptr %p
  br label %further
further:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, 4
  br i1 %more, label %loop, label %yes
yes:
  ret void
}
define internal void @parts.stored(ptr %c, ptr %w, i64 %word, i32 %number) {
entry:
  %written = field %w B_WRITTEN
  %reads = field %w B_READS
  %slots = field %w B_SLOTS
  %places = field %w B_PLACES
  %first = shl i64 %word, 2
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %further]
  %byte = add i64 %first, %k
  call void @overwritten(i64 %written, i64 %reads, i64 %slots, i64 %places, i64 %byte, i32 %number)
  br label %further
further:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, 4
  br i1 %more, label %loop, label %yes
yes:
  ret void
}
define internal ptr @window(ptr %c, i64 %address, i64 %size) {
entry:
  %count = field %c REGIONS
  %first = getelementptr i64, ptr %c, i64 FIRST_REGION
  %some = icmp ugt i64 %count, 0
  br i1 %some, label %again, label %none
again:
  %last = field %c LAST
  %skip = mul i64 %last, FIELDS
  %w = getelementptr i64, ptr %first, i64 %skip
  %lo = field %w LO
  %hi = field %w HI
  %end = add i64 %address, %size
  %above = icmp uge i64 %address, %lo
  %below = icmp ule i64 %end, %hi
  %in = and i1 %above, %below
  br i1 %in, label %found.last, label %loop
found.last:
  ret ptr %w
loop:
  %k = phi i64 [0, %again], [%next, %further]
  %step = mul i64 %k, FIELDS
  %v = getelementptr i64, ptr %first, i64 %step
  %v.lo = field %v LO
  %v.hi = field %v HI
  %v.above = icmp uge i64 %address, %v.lo
  %v.below = icmp ule i64 %end, %v.hi
  %v.in = and i1 %v.above, %v.below
  br i1 %v.in, label %found, label %further
further:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %none
found:
  put %c LAST %k
  ret ptr %v
none:
  ret ptr null
}
"""

# An access of lanes `active` (a bit each) at addresses [32], COUNT elements of SIZE bytes side by side; values: of each
# element [32]. Returns whether it is left to Python. First all is looked at, then all is done.
ACCESS = """
define internal i1 @NAME(ptr %c, ptr %addresses, i32 %active, ptr %values, i32 %step MORE) noinline {
entry:
  %idle = icmp eq i32 %active, 0
  br i1 %idle, label %done, label %some
some:
  %lane.0 = call i32 @llvm.cttz.i32(i32 %active, i1 true)
  %p.0 = getelementptr i64, ptr %addresses, i32 %lane.0
  %address.0 = load i64, ptr %p.0
  %w = WINDOW
  %nowhere = icmp eq ptr %w, null
  br i1 %nowhere, label %python, label %inside
inside:
  %lo = field %w LO
  %hi = field %w HI
  %origin = field %w ORIGIN
  %data = field %w DATA
  %flags = field %w FLAGS
  %shadowed.bit = and i64 %flags, SHADOWED
  %shadowed = icmp ne i64 %shadowed.bit, 0
  LANES_KEPT
  %closed.bit = and i64 %flags, CLOSED
  %closed = icmp ne i64 %closed.bit, 0
  br i1 %closed, label %wanted, label %open
wanted:
  %w.address = ptrtoint ptr %w to i64
  put %c WANTED %w.address
  br label %python
open:
  %written = field %w OF_WRITTEN
  %reads = field %w OF_READS
  %slots = field %w OF_SLOTS
  %places = field %w OF_PLACES
  %split = field %w SPLIT
  %parted = icmp ne i64 %split, 0
  SETTLED_FIRST
  ALLOWED
ready:
  %now = field %c NOW
  %room = field %c ROOM
  %after = add i64 %now, 1
  %many = icmp ugt i64 %after, %room
  %noted = field %c EVENT_COUNT
  %noted.after = add i64 %noted, 1
  %event.room = field %c EVENT_ROOM
  %many.events = icmp ugt i64 %noted.after, %event.room
  %full = or i1 %many, %many.events
  br i1 %full, label %python, label %quick
quick:
  FEW
  ROW
slowly:
  br label %look
look:
  %left = phi i32 [%few, %slowly], [%left.next, %looked]
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %less = sub i32 %left, 1
  %left.next = and i32 %left, %less
  %p = getelementptr i64, ptr %addresses, i32 %lane
  %a = load i64, ptr %p
  %end = add i64 %a, BYTES
  %above = icmp uge i64 %a, %lo
  %below = icmp ule i64 %end, %hi
  %in = and i1 %above, %below
  %odd = and i64 %a, BYTES_LESS_1
  %even = icmp eq i64 %odd, 0
  %fine = and i1 %in, %even
  br i1 %fine, label %valid, label %python
valid:
  IS_VALID
shadow:
  LANES_LOOK
  br i1 %shadowed, label %first.word, label %looked
first.word:
  %from = sub i64 %a, %origin
  %word.0 = lshr i64 %from, SHIFT
  br label %words
words:
  %j = phi i64 [0, %first.word], [%j.next, %word.fine]
  %word = add i64 %word.0, %j
  KEPT_HERE
whole:
  ALONE
word.fine:
  %j.next = add i64 %j, 1
  %more.words = icmp ult i64 %j.next, WORDS
  br i1 %more.words, label %words, label %looked
looked:
  %last = icmp eq i32 %left.next, 0
  br i1 %last, label %act, label %look
act:
  br label %element
element:
  %k = phi i64 [0, %act], [%k.next, %element.done]
  br i1 %shadowed, label %note, label %lanes
note:
  %new.element = icmp eq i64 %k, 0
  br i1 %new.element, label %note.now, label %lanes
note.now:
  call void @event(ptr %c, i32 %step, i8 MARK)
  br label %lanes
lanes:
  %number.64 = field %c NOW
  %number = trunc i64 %number.64 to i32
  %of.k = mul i64 %k, 32
  %values.k = getelementptr iBITS, ptr %values, i64 %of.k
  %ahead = mul i64 %k, SIZE
  br label %do
do:
  %todo = phi i32 [%few, %lanes], [%todo.next, %done.one]
  %who = call i32 @llvm.cttz.i32(i32 %todo, i1 true)
  %todo.less = sub i32 %todo, 1
  %todo.next = and i32 %todo, %todo.less
  %p.who = getelementptr i64, ptr %addresses, i32 %who
  %a.who = load i64, ptr %p.who
  %a.k = add i64 %a.who, %ahead
  %value.at = getelementptr iBITS, ptr %values.k, i32 %who
  %data.at = at %data i8 %a.k
  MOVE
  LANES_NOTE
  br i1 %shadowed, label %mark.first, label %done.one
mark.first:
  %from.k = sub i64 %a.k, %origin
  %word.k = lshr i64 %from.k, SHIFT
  br label %mark
mark:
  %i = phi i64 [0, %mark.first], [%i.next, %marked]
  %word.i = add i64 %word.k, %i
  NOTE
  br label %marked
marked:
  %i.next = add i64 %i, 1
  %more.marks = icmp ult i64 %i.next, WORDS_EACH
  br i1 %more.marks, label %mark, label %done.one
done.one:
  %all = icmp eq i32 %todo.next, 0
  br i1 %all, label %element.lanes, label %do
element.lanes:
  SPREAD
element.done:
  %k.next = add i64 %k, 1
  %more.elements = icmp ult i64 %k.next, COUNT
  br i1 %more.elements, label %element, label %stored
stored:
  STORED_LANES
  MOVED_BYTES
  br label %done
done:
  ret i1 false
python:
  ret i1 true
}
"""
# What of it depends on the memory and the direction
_LOAD = {
    "ALONE": """ASK_SETTLED
  %p.written = at %written i32 %word
  %writer = load i32, ptr %p.written
  %before = call i1 @known(ptr %c, i32 %writer)
  br i1 %before, label %read.slot, label %python
read.slot:
  %slot = call i64 @slot(ptr %c, i64 %reads, i64 %slots, i64 %places, i64 %word)
  %nowhere.kept = icmp slt i64 %slot, 0
  br i1 %nowhere.kept, label %python, label %word.fine""",
    "MOVE": """%v = load iBITS, ptr %data.at
  store iBITS %v, ptr %value.at""",
    "NOTE": """SKIP_SETTLED
  %slot.i = call i64 @slot(ptr %c, i64 %reads, i64 %slots, i64 %places, i64 %word.i)
  %p.i = at %reads i32 %slot.i
  store i32 %number, ptr %p.i
  SETTLE""",
    "ALLOWED": "br label %ready",
    "MARK": "0",
    "STORED_LANES": "",
}
_STORE = {
    "ALONE": """%after.all = call i1 @clear(ptr %c, i64 %written, i64 %reads, i64 %slots, i64 %places, i64 %word)
  br i1 %after.all, label %word.fine, label %python""",
    "MOVE": """%v = load iBITS, ptr %value.at
  store iBITS %v, ptr %data.at""",
    "NOTE": "call void @overwritten(i64 %written, i64 %reads, i64 %slots, i64 %places, i64 %word.i, i32 %number)",
    "ALLOWED": """%writable.bit = and i64 %flags, WRITABLE
  %writable = icmp ne i64 %writable.bit, 0
  br i1 %writable, label %ready, label %python""",
    "MARK": str(GENERIC),
    "STORED_LANES": """%stored.before = field %c STORED
  %who.stored = zext i32 STORERS to i64
  %stored.more = or i64 %stored.before, %who.stored
  put %c STORED %stored.more""",
}
_SHARED = {"WINDOW": "getelementptr i64, ptr %c, i64 FIRST_SHARED"}
_GLOBAL = {
    "WINDOW": "call ptr @window(ptr %c, i64 %address.0, i64 BYTES)",
    "IS_VALID": "br label %shadow",
}
_VALID = """%valid.base = field %w VALID
  br i1 %shadowed, label %valid.ask, label %shadow
valid.ask:
  %p.valid = at %valid.base i8 %a
  %valid.bytes = load iVBITS, ptr %p.valid, align 1
  %all.valid = icmp eq iVBITS %valid.bytes, ONES
  br i1 %all.valid, label %shadow, label %python"""
_BUSY = """%busy.lo = field %w BUSY_LO
  %busy.hi = field %w BUSY_HI
  %reaches = icmp ugt i64 %end, %busy.lo
  %begins = icmp ult i64 %a, %busy.hi
  %busy = and i1 %reaches, %begins
  br i1 %busy, label %python, label %shadow"""
_MAKE_VALID = """%valid.base.do = field %w VALID
  %p.valid.do = at %valid.base.do i8 %a.k
  store iVBITS_EACH ONES_EACH, ptr %p.valid.do, align 1
  """
# Lanes of one warp, as state/lanes.py keeps them. `look`: whether another lane has written there, for a load, or has
# written or read, for a store; `note`: what is kept is the access's key, or that of several. VECTOR: of the halves of a
# word, or of one of them; %key: of a lane of those that are here, the first one's for others
_LANE_KEY = """
define internal i32 @lane.key(ptr %c, i32 %at, i32 %epoch, i1 %several) {
  %present.64 = field %c ACTIVE
  %present = trunc i64 %present.64 to i32
  %bit = shl i32 1, %at
  %in = and i32 %present, %bit
  %here = icmp ne i32 %in, 0
  %place = select i1 %here, i32 %at, i32 0
  %place.64 = zext i32 %place to i64
  %numbers = field %c LANE_NUMBERS
  %p = at %numbers i64 %place.64
  %number = load i64, ptr %p
  %lane = trunc i64 %number to i32
  %who = select i1 %several, i32 SEVERAL, i32 %lane
  %key = or i32 %who, %epoch
  ret i32 %key
}
"""
_LANES = """
define internal i1 @lanes.look.VECTOR(i64 %table, i64 %place, i32 %key, i32 %bound) noinline {
  %key.1 = insertelement TYPE poison, i32 %key, i32 0
  %keys = shufflevector TYPE %key.1, TYPE poison, TYPE zeroinitializer
  %bound.1 = insertelement TYPE poison, i32 %bound, i32 0
  %bounds = shufflevector TYPE %bound.1, TYPE poison, TYPE zeroinitializer
  %p = at %table i32 %place
  %kept = load TYPE, ptr %p, align 4
  %unlike = xor TYPE %kept, %keys
  %far = sub TYPE %unlike, splat (i32 1)
  %others = icmp ult TYPE %far, %bounds
  %bits = bitcast <VECTOR x i1> %others to iVECTOR
  %any = icmp ne iVECTOR %bits, 0
  ret i1 %any
}
define internal void @lanes.note.VECTOR(i64 %table, i64 %place, i32 %key, i32 %epoch) noinline {
  %key.1 = insertelement TYPE poison, i32 %key, i32 0
  %keys = shufflevector TYPE %key.1, TYPE poison, TYPE zeroinitializer
  %many = or i32 %epoch, SEVERAL
  %many.1 = insertelement TYPE poison, i32 %many, i32 0
  %manys = shufflevector TYPE %many.1, TYPE poison, TYPE zeroinitializer
  %p = at %table i32 %place
  %kept = load TYPE, ptr %p, align 4
  %unlike = xor TYPE %kept, %keys
  %far = sub TYPE %unlike, splat (i32 1)
  %others = icmp ult TYPE %far, splat (i32 LANE_MASK)
  %new = select <VECTOR x i1> %others, TYPE %manys, TYPE %keys
  store TYPE %new, ptr %p, align 4
  ret void
}
"""
_LANES_KEPT = """%lane.table = field %w LANE_TABLE
  %lanes.kept = icmp ne i64 %lane.table, 0
  %lanes.active = field %c ACTIVE
  %crowd = icmp ugt i64 %lanes.active, 1
  %several = and i1 %one.address, %crowd
  %bound = select i1 %several, i32 LANE_MASK, i32 ONE_LANE"""
_DEPENDENT = """%used = field %w USED
  %is.used = icmp ne i64 %used, 0
  br i1 %is.used, label %depends, label %kept
depends:
  %byte.i = shl i64 %word.i, SHIFT
  %used.word = lshr i64 %byte.i, 2
  %p.used = at %used i8 %used.word
  store i8 1, ptr %p.used
  br label %kept
kept:
  """

# What the functions of accesses call
DECLARATIONS = {
    "@llvm.cttz.i32": "declare i32 @llvm.cttz.i32(i32, i1)",
    "@llvm.ctpop.i32": "declare i32 @llvm.ctpop.i32(i32)",
    "@llvm.memset.p0.i64": "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
}

# What is counted: lanes that are not here do as the first one does, and a load of many lanes at one address is one
_MOVED = """%present.64 = field %c ACTIVE
  %present = trunc i64 %present.64 to i32
  %moving = and i32 %active, %present
  %lanes.moving = call i32 @llvm.ctpop.i32(i32 %moving)
  ONE_FOR_ALL
  %lanes.wide = zext i32 %lanes.counted to i64
  %bytes.here = mul i64 %lanes.wide, BYTES
  %moved.before = field %c MOVED
  %moved = add i64 %moved.before, %bytes.here
  put %c MOVED %moved"""

_ONE_FOR_ALL = """%all.addresses = load <32 x i64>, ptr %addresses, align 8
  %lead = insertelement <32 x i64> poison, i64 %address.0, i64 0
  %leads = shufflevector <32 x i64> %lead, <32 x i64> poison, <32 x i32> zeroinitializer
  %elsewhere = icmp ne <32 x i64> %all.addresses, %leads
  %elsewhere.32 = bitcast <32 x i1> %elsewhere to i32
  %scattered = and i32 %elsewhere.32, %moving
  %together = icmp eq i32 %scattered, 0
  %lanes.counted = select i1 %together, i32 1, i32 %lanes.moving"""


# Places where no more reads are kept (state/shadow.py, Plane.settled), which loads of whole words of global memory ask
# for first. `settled`: whether so many words are all such. If all that an access reads is, only data moves; lanes that
# a guard keeps out read where the first one does
_SETTLED = """
define internal i1 @settled(i64 %settled, i64 %word, i64 %count) {
entry:
  br label %loop
loop:
  %k = phi i64 [0, %entry], [%next, %further]
  %at.word = add i64 %word, %k
  %p = at %settled i8 %at.word
  %is = load i8, ptr %p
  %yes = icmp ne i8 %is, 0
  br i1 %yes, label %further, label %no
further:
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %count
  br i1 %more, label %loop, label %all
all:
  ret i1 true
no:
  ret i1 false
}
define internal void @settle(ptr %c, i64 %settled, i64 %written, i64 %reads, i64 %word) {
  %first.at = at %reads i32 %word
  %first = load i32, ptr %first.at
  %number = sext i32 %first to i64
  %spaces = field %c SPACE
  %at.space = at %spaces i32 %number
  %space = load i32, ptr %at.space
  %own = field %c OWN_SPACE
  %own.space = trunc i64 %own to i32
  %others = icmp ne i32 %space, %own.space
  %written.at = at %written i32 %word
  %writer = load i32, ptr %written.at
  %unwritten = icmp eq i32 %writer, 0
  %is = and i1 %others, %unwritten
  br i1 %is, label %yes, label %end
yes:
  %p = at %settled i8 %word
  store i8 1, ptr %p
  br label %end
end:
  ret void
}
"""
_SETTLED_FIRST = """%settled = field %w SETTLED
  %settles = icmp ne i64 %settled, 0
  %whole.words = icmp eq i64 %split, 0
  %may.be = and i1 %settles, %whole.words
  br i1 %may.be, label %fast, label %slow
fast:
  %every = load <32 x i64>, ptr %addresses, align 8
  %lead.1 = insertelement <32 x i64> poison, i64 %address.0, i64 0
  %lead.32 = shufflevector <32 x i64> %lead.1, <32 x i64> poison, <32 x i32> zeroinitializer
  %those = bitcast i32 %active to <32 x i1>
  %here.all = select <32 x i1> %those, <32 x i64> %every, <32 x i64> %lead.32
  store <32 x i64> %here.all, ptr %addresses, align 8
  %differ = icmp ne <32 x i64> %here.all, %lead.32
  %differ.32 = bitcast <32 x i1> %differ to i32
  %alike = icmp eq i32 %differ.32, 0
  br i1 %alike, label %fast.one, label %fast.many
fast.one:
  %one.end = add i64 %address.0, BYTES
  %one.above = icmp uge i64 %address.0, %lo
  %one.below = icmp ule i64 %one.end, %hi
  %one.odd = and i64 %address.0, BYTES_LESS_1
  %one.even = icmp eq i64 %one.odd, 0
  %one.in = and i1 %one.above, %one.below
  %one.fine = and i1 %one.in, %one.even
  br i1 %one.fine, label %fast.one.word, label %python
fast.one.word:
  %one.from = sub i64 %address.0, %origin
  %one.word = lshr i64 %one.from, 2
  %one.settled = call i1 @settled(i64 %settled, i64 %one.word, i64 WORDS)
  br i1 %one.settled, label %fast.loop, label %slow
fast.many:
  %lo.1 = insertelement <32 x i64> poison, i64 %lo, i64 0
  %lo.32 = shufflevector <32 x i64> %lo.1, <32 x i64> poison, <32 x i32> zeroinitializer
  %last.byte = sub i64 %hi, BYTES
  %hi.1 = insertelement <32 x i64> poison, i64 %last.byte, i64 0
  %hi.32 = shufflevector <32 x i64> %hi.1, <32 x i64> poison, <32 x i32> zeroinitializer
  %low = icmp ult <32 x i64> %here.all, %lo.32
  %high = icmp ugt <32 x i64> %here.all, %hi.32
  %odds = and <32 x i64> %here.all, splat (i64 BYTES_LESS_1)
  %uneven = icmp ne <32 x i64> %odds, zeroinitializer
  %outside = or <32 x i1> %low, %high
  %wrong = or <32 x i1> %outside, %uneven
  %wrong.32 = bitcast <32 x i1> %wrong to i32
  %right = icmp eq i32 %wrong.32, 0
  br i1 %right, label %fast.ask, label %python
fast.ask:
  %f.lane = phi i64 [0, %fast.many], [%f.next, %fast.further]
  %f.p = getelementptr i64, ptr %addresses, i64 %f.lane
  %f.a = load i64, ptr %f.p
  %f.from = sub i64 %f.a, %origin
  %f.word = lshr i64 %f.from, 2
  %f.settled = call i1 @settled(i64 %settled, i64 %f.word, i64 WORDS)
  br i1 %f.settled, label %fast.further, label %slow
fast.further:
  %f.next = add i64 %f.lane, 1
  %f.more = icmp ult i64 %f.next, 32
  br i1 %f.more, label %fast.ask, label %fast.loop
fast.loop:
  %f.used = field %w WAS_READ
  %f.depends = icmp ne i64 %f.used, 0
  br label %fast.element
fast.element:
  %f.k = phi i64 [0, %fast.loop], [%f.k.next, %fast.element.done]
  %f.of.k = mul i64 %f.k, 32
  %f.values = getelementptr iBITS, ptr %values, i64 %f.of.k
  %f.ahead = mul i64 %f.k, SIZE
  br i1 %alike, label %fast.same, label %fast.lane
fast.same:
  %s.a = add i64 %address.0, %f.ahead
  %s.at = at %data i8 %s.a
  %s.v = load iBITS, ptr %s.at
  %s.1 = insertelement <32 x iBITS> poison, iBITS %s.v, i64 0
  %s.32 = shufflevector <32 x iBITS> %s.1, <32 x iBITS> poison, <32 x i32> zeroinitializer
  store <32 x iBITS> %s.32, ptr %f.values, align 8
  br label %fast.element.done
fast.lane:
  %d.lane = phi i64 [0, %fast.element], [%d.next, %fast.lane]
  %d.p = getelementptr i64, ptr %addresses, i64 %d.lane
  %d.a.0 = load i64, ptr %d.p
  %d.a = add i64 %d.a.0, %f.ahead
  %d.at = at %data i8 %d.a
  %d.v = load iBITS, ptr %d.at
  %d.to = getelementptr iBITS, ptr %f.values, i64 %d.lane
  store iBITS %d.v, ptr %d.to
  %d.next = add i64 %d.lane, 1
  %d.more = icmp ult i64 %d.next, 32
  br i1 %d.more, label %fast.lane, label %fast.element.done
fast.element.done:
  %f.k.next = add i64 %f.k, 1
  %f.k.more = icmp ult i64 %f.k.next, COUNT
  br i1 %f.k.more, label %fast.element, label %fast.done
fast.done:
  br i1 %f.depends, label %fast.used, label %stored
fast.used:
  %u.lane = phi i64 [0, %fast.done], [%u.next, %fast.used]
  %u.p = getelementptr i64, ptr %addresses, i64 %u.lane
  %u.a = load i64, ptr %u.p
  %u.from = sub i64 %u.a, %origin
  %u.word = lshr i64 %u.from, 2
  %u.at = at %f.used i8 %u.word
  call void @llvm.memset.p0.i64(ptr %u.at, i8 1, i64 WORDS, i1 false)
  %u.next = add i64 %u.lane, 1
  %u.more = icmp ult i64 %u.next, 32
  br i1 %u.more, label %fast.used, label %stored
slow:"""
_ASK_SETTLED = """br i1 %settles, label %ask.settled, label %unsettled
ask.settled:
  %is.settled = call i1 @settled(i64 %settled, i64 %word, i64 1)
  br i1 %is.settled, label %word.fine, label %unsettled
unsettled:"""
_SKIP_SETTLED = """br i1 %settles, label %ask.settled.i, label %keep.i
ask.settled.i:
  %is.settled.i = call i1 @settled(i64 %settled, i64 %word.i, i64 1)
  br i1 %is.settled.i, label %marked, label %keep.i
keep.i:"""
_SETTLE = """br i1 %settles, label %settle.i, label %marked
settle.i:
  call void @settle(ptr %c, i64 %settled, i64 %written, i64 %reads, i64 %word.i)"""

# Words are kept whole until somebody accesses a part of one
_WHOLE = """br i1 %parted, label %is.split, label %whole
is.split:
  %p.split = at %split i8 %word
  %is = load i8, ptr %p.split
  %apart = icmp ne i8 %is, 0
  br i1 %apart, label %apart.here, label %whole
apart.here:
  %parts.fine = call i1 @parts.DIRECTION(ptr %c, ptr %w, i64 %word)
  br i1 %parts.fine, label %word.fine, label %python"""
_WHOLE_NOTE = """br i1 %parted, label %note.split, label %note.whole
note.split:
  %p.split.i = at %split i8 %word.i
  %is.i = load i8, ptr %p.split.i
  %apart.i = icmp ne i8 %is.i, 0
  br i1 %apart.i, label %note.parts, label %note.whole
note.parts:
  call void @parts.DONE(ptr %c, ptr %w, i64 %word.i, i32 %number)
  br label %marked
note.whole:
  """
_PARTED = """br i1 %parted, label %is.split, label %python
is.split:
  %own.word = lshr i64 %word, 2
  %split.now = call i1 @part(ptr %w, i64 %own.word)
  br i1 %split.now, label %whole, label %python"""


def _expanded(text: str) -> str:
    """Assembly without the three words that it has not."""
    names = vars(context_fields)
    out, count = [], 0
    for line in text.splitlines():
        words = line.split()
        if len(words) == 5 and words[2] == "field":
            count += 1
            out += [f"  %f{count} = getelementptr i64, ptr {words[3]}, i64 {names[words[4]]}",
                    f"  {words[0]} = load i64, ptr %f{count}"]
        elif len(words) == 6 and words[2] == "at":
            count += 1
            out += [f"  %f{count} = inttoptr i64 {words[3]} to ptr",
                    f"  {words[0]} = getelementptr {words[4]}, ptr %f{count}, i64 {words[5]}"]
        elif len(words) == 4 and words[0] == "put":
            count += 1
            out += [f"  %f{count} = getelementptr i64, ptr {words[1]}, i64 {names[words[2]]}",
                    f"  store i64 {words[3]}, ptr %f{count}"]
        else:
            out.append(line)
    return "\n".join(out)


def lanes_text() -> str:
    """The functions that keep lanes of one warp apart."""
    texts = (_LANES.replace("TYPE", "<VECTOR x i32>").replace("VECTOR", str(n)) for n in (1, 2))
    text = "".join([_LANE_KEY, *texts])
    return _expanded(text.replace("SEVERAL", str(SEVERAL)).replace("LANE_MASK", str(LANE_MASK)))


def _lanes(what: str, lane: str, address: str, size: int) -> tuple[str, str]:
    """Code that finds a lane's key and where in the table an access's halves begin that were written, `%WHAT.at`.

    It is left out where nothing is kept. Returns it, and the label behind.
    """
    lines = [
        f"br i1 %lanes.kept, label %{what}.lanes, label %{what}.done", f"{what}.lanes:",
        f"  %{what}.key = call i32 @lane.key(ptr %c, i32 %{lane}, i32 %epoch, i1 %several)",
        f"  %{what}.from = sub i64 %{address}, %origin", f"  %{what}.w = lshr i64 %{what}.from, 2",
        f"  %{what}.first = shl i64 %{what}.w, 2", f"  %{what}.h = lshr i64 %{what}.from, 1",
        f"  %{what}.odd = and i64 %{what}.h, {int(size == HALF)}",
        f"  %{what}.at = or i64 %{what}.first, %{what}.odd", "",
    ]  # fmt: skip
    return "\n".join(lines), f"{what}.done"


def _places(size: int) -> tuple[int, range]:
    """How many halves each question is of, and the words of an access."""
    return 1 if size == HALF else 2, range(max(1, size // WORD))


def _lanes_look(size: int, write: bool) -> str:
    """Ask of an access whether another lane is in its way."""
    text, done = _lanes("look", "lane", "a", size)
    halves, words = _places(size)
    clash = "false"
    sides = ((0, "%bound"), (2, str(LANE_MASK)))[: 1 + write]
    for k, (word, (side, bound)) in enumerate((word, side) for word in words for side in sides):
        text += f"  %look.{k} = add i64 %look.at, {4 * word + side}\n  %in.way.{k} = call i1 @lanes.look.{halves}"
        text += f"(i64 %lane.table, i64 %look.{k}, i32 %look.key, i32 {bound})\n"
        text += f"  %clash.{k} = or i1 {clash}, %in.way.{k}\n"
        clash = f"%clash.{k}"
    return text + f"  br i1 {clash}, label %python, label %{done}\n{done}:"


def _lanes_note(size: int, write: bool) -> str:
    """Keep what a lane does with an element."""
    text, done = _lanes("note", "who", "a.k", size)
    halves, words = _places(size)
    for word in words:
        text += f"  %note.{word} = add i64 %note.at, {4 * word + 2 * (not write)}\n  call void @lanes.note.{halves}"
        text += f"(i64 %lane.table, i64 %note.{word}, i32 %note.key, i32 %epoch)\n"
    return text + f"  br label %{done}\n{done}:"


def shadow_text() -> str:
    """The functions that all accesses share."""
    text = (SHADOW + _SETTLED).replace("FIRST_REGION", str(context_fields.SHARED + context_fields.FIELDS))
    return _expanded(text.replace("FIELDS", str(context_fields.FIELDS)))


@functools.cache
def access_text(name: str, write: bool, shared: bool, size: int, count: int, nc: bool = False) -> str:
    """The function of one form of access. nc: a load by the non-coherent cache."""
    parts = {**(_STORE if write else _LOAD), **(_SHARED if shared else _GLOBAL)}
    if nc:
        parts["ALONE"] = parts["ALONE"].replace("call i1 @known(ptr %c, i32 %writer)", "icmp eq i32 %writer, 0")
    bytes_ = size * count
    lanes = shared and size >= HALF
    parts["MORE"] = ", i32 %epoch, i1 %one.address" * shared
    kept = _LANES_KEPT.replace("LANE_MASK", str(LANE_MASK)).replace("ONE_LANE", str(SEVERAL - 1))
    parts["LANES_KEPT"] = kept * lanes
    parts["LANES_LOOK"] = _lanes_look(bytes_, write) if lanes else ""
    parts["LANES_NOTE"] = _lanes_note(size, write) if lanes else ""
    if shared:
        parts["IS_VALID"] = _BUSY if write else _VALID
        if write:
            parts["MOVE"] += "\n  " + _MAKE_VALID
    parted = size < WORD
    parts["KEPT_HERE"] = _PARTED if parted else _WHOLE
    if nc:
        parts["KEPT_HERE"] = parts["KEPT_HERE"].replace("br i1 %parts.fine, label %word.fine,", "br label %python ;")
    if not parted:
        parts["NOTE"] = _WHOLE_NOTE + parts["NOTE"]
    parts["MOVED_BYTES"] = "" if shared else _MOVED.replace("MOVED", "BYTES_STORED" if write else "BYTES_LOADED")
    parts["ONE_FOR_ALL"] = "%lanes.counted = add i32 %lanes.moving, 0" if write else _ONE_FOR_ALL
    if not shared:
        parts["NOTE"] = _DEPENDENT.replace("USED", "WROTE" if write else "WAS_READ") + parts["NOTE"]
    text = ACCESS
    settles = not write and not shared and not parted
    parts["FEW"] = few_text(write)
    parts["ROW"] = "br label %slowly" if parted or nc else row_text(write, shared, size, count)
    parts["SPREAD"] = "br label %element.done" if write else spread_text()
    for key, part in (
        ("SETTLED_FIRST", _SETTLED_FIRST), ("ASK_SETTLED", _ASK_SETTLED), ("SKIP_SETTLED", _SKIP_SETTLED),
        ("SETTLE", _SETTLE),
    ):  # fmt: skip
        parts[key] = part * settles
    # a store to shared memory is its lanes'; one to global memory makes all that are here wait for a fence
    numbers = {
        "STORERS": "%active" if shared else "%here", "FIRST_SHARED": context_fields.SHARED,
        "BYTES_LESS_1": bytes_ - 1, "BYTES": bytes_, "SHIFT": 0 if parted else 2,
        "WORDS_EACH": size if parted else size // WORD, "WORDS": bytes_ if parted else bytes_ // WORD,
        "OF_WRITTEN": "B_WRITTEN" if parted else "WRITTEN", "OF_READS": "B_READS" if parted else "READS",
        "OF_SLOTS": "B_SLOTS" if parted else "SLOTS", "OF_PLACES": "B_PLACES" if parted else "PLACES",
        "parts.DIRECTION": "parts.store" if write else "parts.load",
        "parts.DONE": "parts.stored" if write else "parts.loaded", "COUNT": count,
        "SIZE": size, "SHADOWED": context_fields.SHADOWED, "CLOSED": context_fields.CLOSED,
        "WRITABLE": context_fields.WRITABLE, "NAME": name,
        "ONES_EACH": int.from_bytes(b"\1" * size, "little"), "ONES": int.from_bytes(b"\1" * bytes_, "little"),
    }  # fmt: skip
    text = _replaced(text, parts | {key: str(number) for key, number in numbers.items()})
    for key, bits in (("iVBITS_EACH", 8 * size), ("iVBITS", 8 * bytes_), ("iBITS", 8 * size)):
        text = text.replace(key, f"i{bits}")
    if not shared:
        text = text.replace("stored:\n", "stored:\n  %here.64 = field %c ACTIVE\n  %here = trunc i64 %here.64 to i32\n")
    return _expanded(text)


def _replaced(text: str, parts: dict[str, str]) -> str:
    """The text with the parts in place of their names, and likewise in the parts."""
    names = re.compile(rf"(?<![\w%.])(?:{'|'.join(map(re.escape, parts))})(?!\w)")

    def part(match: re.Match) -> str:
        return names.sub(part, parts[match[0]])

    return names.sub(part, text)
