"""One declaration of a call: its checks, sentences, fake and schema; and that the functions agree with it."""

import inspect

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ragged_moe
from ragged_moe.layers import signatures
from ragged_moe.runtime.device import EmulatedGpu
from ragged_moe.runtime.signature import Result, Signature, Size, Tensor, flag, number, term, whole
from ragged_moe.runtime.sizes import BF16, E4M3, F32

CALLS = {
    "experts": signatures.EXPERTS_CALL, "batched_experts": signatures.BATCHED_CALL, "route": signatures.ROUTE_CALL,
    "grouped_gemm_fp8": signatures.GEMM_CALL, "run": signatures.LAYER_CALL,
}  # fmt: skip
ROWS = Signature(
    "scaled_rows",
    (
        Tensor("rows", (BF16, E4M3), "T H", aligned=True), Tensor("scale", (F32,), "H/128 T"),
        Tensor("of_all", (F32,), "T | T 2", optional=True), Tensor("bias", (F32,), "H", optional=True),
    ),
    (Size("T", "rows", 0, 1, 0, 9), Size("H", "rows", 1, 128, 128, 512)),
    (flag("negate"), number("limit", "=None", "a number above 0, or None", above=0), whole("count", "an int", "=1")),
    (Result(BF16, "T 2H"),),
    form="rows", pairs=(("of_all", "bias"),), out="out", overwritable="rows",
)  # fmt: skip


class Gpu(EmulatedGpu):
    def reaches(self, *_) -> bool:
        return True


def given(**changed) -> dict[str, torch.Tensor | None]:
    made = {"rows": torch.zeros(3, 256, dtype=BF16), "scale": torch.zeros(2, 3), "of_all": None, "bias": None}
    return made | changed


@pytest.mark.parametrize("text, size", [
    ("H", 200), ("2H", 400), ("H/100", 2), ("2H/100", 4), ("H^128", 256), ("H^128/2", 128), ("2H^128/128", 4), ("7", 7),
    ("H+1", 201), ("some_size", 5),
])  # fmt: skip
def test_terms(text, size):
    assert term(text)({"H": 200, "some_size": 5}) == size


def test_schema():
    arguments = ("Tensor rows, Tensor scale, *, Tensor? of_all=None, Tensor? bias=None, bool negate=False, "
                 "float? limit=None, SymInt count=1")  # fmt: skip
    assert ROWS.schema() == f"scaled_rows({arguments}) -> Tensor"
    assert ROWS.schema(out=True) == f"scaled_rows_out(Tensor(a!) out, {arguments}) -> ()"


def test_fake():
    with FakeTensorMode():
        made = ROWS.fake(torch.empty(3, 256), torch.empty(2, 3), negate=True)
    assert made.shape == (3, 512) and made.dtype is BF16


@pytest.mark.parametrize("sentence, changed", [
    ("rows must be a tensor [T, H]", {"rows": torch.zeros(3)}),
    ("rows: dimension H is 200, but must be a multiple of 128 from 128 to 512", {"rows": torch.zeros(3, 200)}),
    ("rows: dimension T is 10, but must be from 0 to 9", {"rows": torch.zeros(10, 128)}),
    ("rows has type torch.float32, but must have torch.bfloat16 or torch.float8_e4m3fn", {"rows": torch.zeros(3, 256)}),
    ("scale: dimension 0 is 3, but must be 2", {"scale": torch.zeros(3, 2)}),
    ("scale: dimension 0 has stride 1, but must have 3: it must be contiguous", {"scale": torch.zeros(3, 2).t()}),
    ("scale is None, but must be a tensor", {"scale": None}),
    ("of_all and bias must be given both or neither", {"bias": torch.zeros(256)}),
    ("of_all: dimension 1 is 3, but must be 2", {"of_all": torch.zeros(3, 3), "bias": torch.zeros(256)}),
    ("rows starts at an address that is not a multiple of 16", {"rows": torch.zeros(769, dtype=BF16)[1:].view(3, 256)}),
    ("gain is given, but rows have no use for it", {"gain": torch.zeros(1)}),
])  # fmt: skip
def test_sentences(sentence, changed):
    with pytest.raises(ValueError) as refused:
        ROWS.check(Gpu(), given(**changed))
    assert str(refused.value).startswith(sentence)


def test_what_is_right():
    assert ROWS.check(Gpu(), given()) == {"T": 3, "H": 256}
    for of_all in (torch.zeros(3), torch.zeros(3, 2)):
        ROWS.check(Gpu(), given(rows=torch.zeros(3, 256).to(E4M3), of_all=of_all, bias=torch.zeros(256)))


@pytest.mark.parametrize("name, wrong, sentence", [
    ("negate", (1, "no", None), "True or False"), ("count", (True, 1.0, "1", None), "an int"),
    ("limit", (0, -1.0, float("inf"), float("nan"), "7"), "a number above 0, or None"),
])  # fmt: skip
def test_options(name, wrong, sentence):
    for x in wrong:
        with pytest.raises(ValueError, match=f"^{name} is {x!r}, but must be {sentence}$"):
            ROWS.check_options(**{name: x})
    ROWS.check_options(negate=True, count=4, limit=None)
    with pytest.raises(ValueError, match="^limit is a Tensor, but must be"):
        ROWS.check_options(limit=torch.ones(1))


@pytest.mark.parametrize("name", CALLS)
def test_functions_take_what_is_declared(name):
    """The same names, in the same order as far as that counts, with the same defaults."""
    declared, function = CALLS[name], inspect.signature(getattr(ragged_moe, name)).parameters
    named = *declared.tensors, *declared.options
    required = {x.name for x in declared.tensors if x.name in declared.leading}
    defaults = {x.name: "" if x.name in required else x.default.removeprefix("=") for x in named}
    taken = [x for x in function if x not in ("out", "output", "workspace")]
    assert set(taken) == set(defaults)
    without = [x for x, default in defaults.items() if not default]
    assert [x for x in taken if function[x].default is inspect.Parameter.empty] == without
    said = {None: "None", "softmax": '"softmax"'}
    for x, default in defaults.items():
        found = function[x].default
        if default:
            assert default == (said[found] if found in said else str(found)), x
    operator = getattr(torch.ops.ragged_moe, name, None) if name != "run" else None
    if operator is not None:
        assert {x.name for x in operator.default._schema.arguments} == set(defaults)
