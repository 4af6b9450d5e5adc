"""`python -m ragged_moe check layer` runs these checks: of what each stage of the layer leaves, and of the
result.

Import this after emulated_gpu.install, if a GPU is emulated.
"""

import dataclasses
import functools
import math

import click
import torch

import emulated_gpu
from ragged_moe.checks import amount
from ragged_moe.checks.grouped_gemm import BOUND
from ragged_moe.layers.deepseek_layer import Layer, layer_of, run
from ragged_moe.reference import layer as d
from ragged_moe.reference.grouped_gemm import magnitudes, reference
from ragged_moe.runtime import sizes as p
from ragged_moe.runtime.device import device_of
from ragged_moe.tuning.back_ends import tuning


def case(name: str, sizes: p.Sizes, tokens: int, offset: int = 0, seed: int = 0) -> p.Inputs:
    """Draw inputs with these of the LOGITS. All but "random" have no bias, so that equal logits have equal scores."""
    inputs = d.draw(sizes, tokens, seed, offset)
    x, local = inputs.routing_logits, slice(offset, offset + sizes.local)
    g = torch.Generator().manual_seed(seed)
    if name == "random":
        return inputs
    inputs.routing_bias.zero_()
    if name == "ties":  # few different numbers; the last token has but one
        x[:] = torch.randint(-1, 2, x.shape, generator=g) / 2
        x[-1:] = 0.25
    elif name == "equal groups":  # all groups have the same scores, in different orders
        first = x[:, : p.GROUP].clone()
        for group in range(p.GROUPS):
            x[:, group * p.GROUP : (group + 1) * p.GROUP] = first.roll(group, 1)
    elif name == "infinities":
        x[torch.rand(x.shape, generator=g) < 0.1] = math.inf
        x[torch.rand(x.shape, generator=g) < 0.5] = -math.inf
        x[-1:] = -math.inf
    elif name == "nan":
        x[torch.rand(x.shape, generator=g) < 0.01] = math.nan
    elif name == "all remote":
        x[:, local] = -math.inf
    elif name == "all on one expert":
        x -= 4
        x[:, local] = -math.inf
        x[:, min(offset + sizes.local, p.EXPERTS) - 1] = 20
    else:
        assert name == "all local"  # as many as a token can have
        x[:, local] += 10
    return inputs


LOGITS = "random", "ties", "equal groups", "infinities", "nan", "all remote", "all on one expert", "all local"


def check_routing(x: p.Inputs, space) -> str | None:
    """Return what is wrong with what routing left in the tensors of space, index by index; None if nothing is."""
    tokens, sizes, offset = x.hidden_states.shape[0], x.sizes, x.local_expert_offset
    chosen, weights = d.route(x.routing_logits, x.routing_bias, x.routed_scaling_factor)
    m_indptr, rows, places = d.lists(chosen, offset, sizes.local)
    expected = d.local_weights(chosen, weights, offset, sizes.local)
    for name, found, must in (
        ("m_indptr", space.m_indptr, m_indptr),
        ("rows", space.rows[: len(rows)], rows),
        ("places", space.places[:tokens], places),
    ):
        if not torch.equal(found, must):
            at = (found != must).nonzero()[0].tolist()
            return f"{name}{at} is {found[tuple(at)].item()}, not {must[tuple(at)].item()}"
    found = space.weights[:tokens]
    if not torch.allclose(found, expected, rtol=1e-5, atol=0, equal_nan=True):
        off = ((found - expected).abs() / expected.abs()).nan_to_num(0).max()
        return f"weights are off by up to {off:.2g} of theirs"
    return None


def check_permuted(x: p.Inputs, space) -> str | None:
    """Return what is wrong with the rows that permute copied, given what routing left; None if nothing is."""
    used = int(space.m_indptr[-1])
    rows = space.rows[:used].long()
    for name, found, must in (
        ("permuted", space.permuted[:used].view(torch.uint8), x.hidden_states.view(torch.uint8)[rows]),
        ("permuted_scale", space.permuted_scale[:, :used], x.hidden_states_scale[:, rows]),
    ):
        if not torch.equal(found, must):
            return f"{name}{(found != must).nonzero()[0].tolist()} is wrong, and {(found != must).sum() - 1} others"
    return None


def check_product(x: p.Inputs, space) -> str | None:
    """Return what is wrong with GEMM1's c, given what routing left; None if nothing is.

    Each value, times its scale, is compared with silu(gate) * up.
    """
    used = int(space.m_indptr[-1])
    rows = space.rows[:used]
    exact = d.product(x, rows, space.m_indptr).double()
    # Up and gate may be off by BOUND times the sum of absolute values; silu's slope is below 1.1
    a = x.hidden_states.view(torch.uint8)[rows.long()].view(p.E4M3)
    size = magnitudes(a, x.hidden_states_scale[:, rows.long()], x.gemm1_weights, x.gemm1_weights_scale, space.m_indptr)
    g = reference(a, x.hidden_states_scale[:, rows.long()], x.gemm1_weights, x.gemm1_weights_scale, space.m_indptr)
    (up, gate), (of_up, of_gate) = g.double().chunk(2, 1), (BOUND * size.double()).chunk(2, 1)
    silu = torch.nn.functional.silu(gate)
    off = of_up * (silu.abs() + 1.1 * of_gate) + 1.1 * of_gate * up.abs()
    scale = space.c_scale[:, :used].double().T
    most = exact.view(used, x.sizes.intermediate // 128, 128).abs().amax(2)
    may = off.view(used, x.sizes.intermediate // 128, 128).amax(2)
    wrong = (scale * 448 - most).abs() > may + 1e-6 * most
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        return f"the scale of row, block {list(at)} is {scale[at]:.6g}, not {most[at] / 448:.6g} +- {may[at] / 448:.2g}"
    scale = scale.repeat_interleave(128, 1)
    found = space.c[:used].float().double() * scale
    # e4m3 keeps 4 significant bits; its least step is 2^-9
    wrong = (found - exact).abs() > off * (1 + 2**-4) + exact.abs() * 2**-4 * 1.001 + scale * 2**-10 * 1.001
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        return f"c{list(at)} is {found[at]:.6g}, not {exact[at]:.6g}; {wrong.sum()} are wrong"
    return None


def check_second(x: p.Inputs, space) -> str | None:
    """Return what is wrong with GEMM2's o, given what GEMM1 left, by the bound of ragged_moe check gemm; None
    if nothing is."""
    used = int(space.m_indptr[-1])
    operands = space.c[:used], space.c_scale[:, :used], x.gemm2_weights, x.gemm2_weights_scale, space.m_indptr
    found, expected = space.o[:used].double(), reference(*operands).double()
    if not torch.equal(found.isnan(), expected.isnan()):
        return f"o has {found.isnan().sum()} NaN, not {expected.isnan().sum()}"
    off = ((found - expected).abs() / magnitudes(*operands).double()).nan_to_num(0)
    bad = off.numel() and not off.max() <= BOUND
    return f"o is off by {off.max():.3g} of its sum of absolute values, more than {BOUND:.3g}" if bad else None


def check_output(x: p.Inputs, space, output: torch.Tensor) -> str | None:
    """Return what is wrong with the output, given what GEMM2 and routing left; None if nothing is.

    It is compared bit for bit, but for which NaN it is.
    """
    tokens = x.hidden_states.shape[0]
    expected = d.combined(space.o, space.places[:tokens], space.weights[:tokens])
    bad = (output.view(torch.int16) != expected.view(torch.int16)) & ~(output.isnan() & expected.isnan())
    return f"{bad.sum()} outputs differ" if bad.any() else None


@dataclasses.dataclass(frozen=True)
class Result:
    """How far one call of the layer was from what it must give."""

    wrong: str | None  # the first stage that is wrong, and how
    matched: float  # share of outputs within the contest's tolerance, of which 0.9 must be
    to_exact: float  # distance from the definition's result, in its norms
    to_quantised: float  # distance from what the kernels should give, rounding by rounding


FAR = 0.05  # allowed distance from the exact result, which is not quantised in between


def close(values: int) -> float:
    """Return the distance from quantised_layer that is allowed with this many values of c.

    Sums that the tensor core rounds otherwise make 1 % of them a neighbour in e4m3, a step of up to 1/8. Where they are
    few, a single one weighs: of 6 draws of 1280 values, 0.001 to 0.014; of more than 100,000, 0.004 (H200).
    """
    return 0.005 + max(values, 1) ** -0.5


def compare(x: p.Inputs, space, output: torch.Tensor) -> Result:
    """Check every stage against what the one before left, and the whole. x, space and output are on one device."""
    wrong = None
    if x.hidden_states.shape[0]:
        for stage, found in (
            ("routing", check_routing(x, space)),
            ("GEMM1", check_product(x, space)),
            ("GEMM2", check_second(x, space)),
            ("finalise", check_output(x, space, output)),
        ):
            wrong = wrong or (f"{stage}: {found}" if found else None)
    exact, quantised = d.layer(x), d.quantised_layer(x)
    whole = ~exact.isnan().any(1)  # tokens whose logits have no NaN
    if not wrong and not output[~whole].isnan().all():
        wrong = "the result: a number where NaN must be"
    output, exact, quantised = output[whole], exact[whole], quantised[whole]
    near = close(int(space.m_indptr[-1]) * x.sizes.intermediate if len(output) else 0)
    result = Result(wrong, d.matched(output, exact), d.distance(output, exact), d.distance(output, quantised))
    if not wrong and not (result.matched >= 0.9 and result.to_exact <= FAR and result.to_quantised <= near):
        return dataclasses.replace(result, wrong=f"the result: {result}")
    return result


def emulated(
    x: p.Inputs, schedule: int = 0, sms: int = 6, configs: tuple | None = None, last: str = "", crowded: bool = False
):
    """Call the layer on the emulated GPU, of which this many SMs are used; return (the tensors of space, output).

    The inputs may only be read, and only behind a wait for the launch before, as if that had written them. configs: of
    both GEMMs, if not the table's. last: the stage after which the call ends, routing or permute. crowded: see
    emulated_gpu.session.
    """
    tokens = x.hidden_states.shape[0]
    layer = Layer(torch.device("cpu"), x.sizes)
    layer.sms = sms
    if configs:
        layer.configs = lambda tokens: configs
    output = torch.full((tokens, x.sizes.hidden), math.nan, dtype=p.BF16)
    with emulated_gpu.session(schedule=schedule, strict=True, crowded=crowded):
        (*tensors, output) = emulated_gpu.device_tensors((*x.tensors(), output))
        emulated_gpu.protect(tensors)
        emulated_gpu.written(tensors)
        if last:
            space = layer.space(tokens)
            layer.route(x.replaced(tensors), space)
            if last == "permute":
                layer.permute(x.replaced(tensors), space)
        else:
            layer(x.replaced(tensors), output)
        return layer.tensors(tokens), output


CALLS = ("all local", 20), ("random", 40), ("all remote", 3), ("all on one expert", 5)
SECONDS = 3.0  # of an emulated call, whose compilations are the most of it


def check_emulated(schedules: int, everything: bool) -> None:
    """Check small cases on the emulated GPU, routing and the layer: of the configs of GEMM1 as amount.pairs says."""
    sizes = p.Sizes(hidden=256, intermediate=256, local=4)
    configs = tuning(device_of(torch.device("cpu")).capability)
    second = next(config for config in configs.GEMM if not config.swap_ab)
    routed, calls = amount.pairs(LOGITS, (1, 50), everything), amount.pairs(CALLS, configs.GEMM1, everything)
    of_all = 2 * len(LOGITS) + len(CALLS) * len(configs.GEMM1)
    amount.say([*routed, *calls] * schedules, of_all * schedules, SECONDS, "calls")
    for name, tokens in routed:
        x = case(name, sizes, tokens, 32)
        for schedule in range(schedules):
            space, _ = emulated(x, schedule, 3, last="routing")
            complain(f"routing, {name}, T = {tokens}", check_routing(x, space))
        click.echo(f"ok routing, {name}, T = {tokens}")
    for (name, tokens), config in calls:
        x = case(name, sizes, tokens, 32)
        for schedule in range(schedules):
            result = compare(x, *emulated(x, schedule, configs=(config, second)))
            complain(f"{name}, T = {tokens}, {config}", result.wrong)
        click.echo(f"ok layer, {name}, T = {tokens}, {config}")


def check_on_gpu() -> None:
    """Check the layer at the definition's size, in eager calls and replayed from a CUDA graph."""
    sizes, device = p.Sizes(), torch.device("cuda", torch.cuda.current_device())
    x = d.draw(sizes, 1, device="cuda")
    for name in LOGITS:
        for tokens, offset in ((1, 0), (300, 64), (2048, 32), (5000, 17)):
            y = case(name, dataclasses.replace(sizes, hidden=128, intermediate=128), tokens, offset)
            y = y.replaced(tuple(t.cuda() for t in y.tensors()))
            layer = layer_of(device, y.sizes)
            space = layer.space(tokens)
            layer.route(y, space)
            complain(f"routing, {name}, T = {tokens}", check_routing(y, layer.tensors(tokens)))
            if "permute" in layer.stages(tokens):
                layer.permute(y, space)
                complain(f"permute, {name}, T = {tokens}", check_permuted(y, layer.tensors(tokens)))
        click.echo(f"ok routing, permute, {name}")
    for tokens in (1, 7, 64, 901, 2048, 4096):
        of_tokens = d.draw(dataclasses.replace(sizes, local=1), tokens, tokens, 0, "cuda")
        names = "routing_logits", "hidden_states", "hidden_states_scale"
        x = dataclasses.replace(x, **{name: getattr(of_tokens, name) for name in names})
        output = torch.full((tokens, sizes.hidden), math.nan, dtype=p.BF16, device="cuda")
        arguments = *x.tensors(), x.local_expert_offset, x.routed_scaling_factor, output
        run(*arguments)
        result = compare(x, layer_of(device, sizes).tensors(tokens), output)
        complain(f"T = {tokens}", result.wrong)
        first, graph = output.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(*arguments)
        for again in (functools.partial(run, *arguments), graph.replay):
            output.fill_(math.nan)
            again()
            same = torch.equal(output.view(torch.int16), first.view(torch.int16))
            complain(f"T = {tokens}", None if same else "other bits in another call")
        click.echo(
            f"ok T = {tokens}: {result.matched:.4f} within the contest's tolerance, {result.to_exact:.4f} of the norm "
            f"from the definition, {result.to_quantised:.4f} from what the kernels should give; the same bits again"
        )


def complain(what: str, wrong: str | None) -> None:
    """End the command with this sentence if something is wrong."""
    if wrong:
        raise click.ClickException(f"{what}: {wrong}")
