"""A process of the judge's that takes cases and gives verdicts; the submission's process is another. See judge.py."""

import contextlib
import hashlib
import json
import os
import resource
import signal
import socket
import time
from pathlib import Path

import numpy as np
import torch

import reference
from emulator.arena import BASE, PAGE, Arena, Heap
from emulator.errors import EmulatorError
from evaluation import emulated, inputs, modelled
from evaluation.placed import Placed
from evaluation.sandbox import Channel, Nursery
from evaluation.statistics import Stats, calculate_stats, precise_enough
from evaluation.verdict import Options, Refused, Verdict, check_time, compare, ulps
from task import TestCase, combine_seeds

AUDITED = 0.2  # share of the repeats in which every result is taken right after its call; their times do not count
OURS = 2**36  # bytes of shared memory for inputs and results; what is not touched costs nothing
LONGEST = 2**26  # bytes of a line from the submission's process
LAUNCHES = 10_000  # of one call
HELD = 8.0  # GiB that the judge's process may need beside what the submission's kernels do


class Late(BaseException):
    """The time for a call is over. No Exception: what is interrupted is not to handle it."""


class NotTimed(Exception):
    """There is no modelled time; the message says why."""


@contextlib.contextmanager
def limit(seconds: float):
    """Raises Late in this block once that time is over; not nested."""

    def late(*_):
        raise Late

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Worker:
    """The submission's process, started when it is first needed and again after it was killed or died."""

    def __init__(self, options: Options, nursery: Nursery, arena: Arena, directory: str, judges: list[int]):
        self.options, self.nursery, self.arena, self.directory, self.judges = options, nursery, arena, directory, judges
        self.config = None  # (sizes, changes) for configs.choose
        self.pid, self.isolation, self.log = None, None, Path(directory, "log")
        self.started = 0

    def start(self) -> None:
        options = self.options
        self.started += 1
        scratch = os.path.join(self.directory, f"scratch{self.started}")
        os.mkdir(scratch)
        os.chmod(scratch, 0o777)  # whichever user the worker will be
        told = {
            "submission": os.path.abspath(options.submission), "config": self.config, "device": options.device,
            "scratch": scratch,
            "memory": int(options.memory * 2**30), "threads": max(1, (os.cpu_count() or 1) // options.jobs),
            "judges": [os.getpid(), *self.judges], "size": self.arena.size, "heap": BASE + OURS,
        }  # fmt: skip
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.rest = b""
        with open(self.log, "wb") as log:
            self.pid = self.nursery.start("worker.main", told, fds=(theirs.fileno(), self.arena.fd, log.fileno()))
        theirs.close()
        with self.answering("import"):
            self.isolation = self.receive("import").get("isolation", self.isolation)
            self.receive("import")

    def ask(self, what: str, take=None, **request) -> dict:
        """The reply to a request; raises Refused with the reason if there is none, or if it carries an error.

        take(message): the answer to a launch that the submission makes meanwhile.
        """
        if self.pid is None:
            self.start()
        with self.answering(what):
            self.send(request)
            while "launch" in (reply := self.receive(what)):
                if take is None:
                    raise Refused("the submission's process launched something out of turn")
                self.send(take(reply["launch"]))
        return reply

    @contextlib.contextmanager
    def answering(self, what: str):
        """Whatever goes wrong in this block ends the process, and is Refused."""
        try:
            with limit(self.options.timeout):
                yield
        except Late:
            self.kill()
            raise Refused(f"hang: no {what} within {self.options.timeout:g} s, process killed") from None
        except (EOFError, ConnectionError):
            raise Refused(f"crash during {what}: {self.died()}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, emulated.Garbled):
            self.kill()
            raise Refused("the submission's process sent something that is not a reply") from None
        except MemoryError as error:
            self.kill()
            raise Refused(f"out of memory: {error}") from None
        except Refused:
            self.kill()  # whatever went wrong stays out of the next case
            raise

    def send(self, message) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, what: str) -> dict:
        """One line of JSON: nothing that the submission may send in its place can block the judge or run code here."""
        line = bytearray(self.rest)
        while (end := line.find(b"\n")) < 0 and len(line) < LONGEST:
            chunk = self.socket.recv(2**20)
            if not chunk:
                raise EOFError
            line += chunk
        self.rest = bytes(line[end + 1 :])
        reply = json.loads(line[:end])
        if "launch" not in reply and reply["error"]:
            raise Refused(str(reply["error"])[:10_000])
        return reply

    def died(self) -> str:
        for _ in range(100):  # the connection goes before the process does, seconds before on a busy machine
            if self.dead():
                break
            time.sleep(0.1)
        code = self.kill()
        if code is None:
            return "the submission closed the judge's connection"
        lines = self.log.read_text(errors="replace").split("\n") if self.log.exists() else []
        last = next((f", last output '{line.strip()[:200]}'" for line in reversed(lines) if line.strip()), "")
        if code < 0:
            return f"the submission's process was ended by {signal.Signals(-code).name}{last}"
        return f"the submission's process exited with code {code}{last}"

    def dead(self) -> bool:
        """Whether all of its threads have ended: only then is there an exit code."""
        try:
            process = Path(f"/proc/{self.pid}")
            ended = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            return ended and len(list((process / "task").iterdir())) == 1
        except OSError:
            return True

    def kill(self) -> int | None:
        """Ends the process and everything it started; its exit code if it had ended before."""
        if self.pid is None:
            return None
        self.socket.close()
        pid, self.pid = self.pid, None
        return self.nursery.end(pid)


class Bench:
    """What the cases of one process share. arena, heap: the shared memory, and the judge's part of it."""

    def __init__(self, options: Options, nursery: Nursery, directory: str, judges: list[int], arena: Arena, heap: Heap):
        self.options, self.arena, self.heap = options, arena, heap
        self.worker = Worker(options, nursery, self.arena, directory, judges)

    def turn_to(self, options: Options, args: dict) -> None:
        """What follows is a case of these arguments, under these options."""
        config = None
        if options.config is not None:
            config = {name: value for name, value in args.items() if name != "seed"}, options.config
        if (options.submission, config) != (self.options.submission, self.worker.config):
            self.worker.kill()
        self.options = self.worker.options = options
        self.worker.config = config

    def configs(self, asked: list[tuple[dict, dict]]) -> list[dict]:
        """As configs.described. Raises Refused."""
        reply = self.worker.ask("import", op="configs", asked=asked)
        with self.worker.answering("import"):
            return [{str(name): str(value) for name, value in of.items()} for of in reply["configs"]]

    def shared_memory(self, case: TestCase, options: Options) -> int:
        """As of Modelling. Raises Refused."""
        self.turn_to(options, case.args)
        return Modelling(Trial(case, self)).shared_memory()

    def verdict(self, case: TestCase, extra: bool, options: Options) -> Verdict:
        """extra: with a call more, and sizes near those of the case."""
        verdict = Verdict(case.spec)
        try:
            self.turn_to(options, case.args)
            trial = (MeasuredTrial if self.options.timed and self.options.device == "cuda" else Trial)(case, self)
            verdict = trial.verdict
            trial.run(extra)
            verdict.status, verdict.reason = "pass", ""
        except Refused as error:
            verdict.reason = str(error)
        except Exception as error:  # the judge's own failure is no pass either
            verdict.reason = f"evaluator: {type(error).__name__}: {error}"
            self.worker.kill()
        if verdict.modelled is None and self.options.timed and self.options.device != "cuda":
            verdict.modelled = {"error": "the results are wrong"}
        verdict.isolation = self.worker.isolation
        return verdict


def pair(benches: list[Bench], case: TestCase, both: list[Options]) -> tuple[Verdict, Verdict, Stats | None]:
    """Of a case on a GPU, timed with two submissions in turns; and by how much the second is slower, per round."""
    verdicts, rounds = [Verdict(case.spec) for _ in benches], None
    try:
        trials = []
        for bench, options in zip(benches, both):
            bench.turn_to(options, case.args)
            trials.append(MeasuredTrial(case, bench))
        verdicts = [trial.verdict for trial in trials]
        rounds = measure_in_turns(trials)
    except Exception as error:  # the judge's own failure is no pass either
        for bench, verdict in zip(benches, verdicts):
            bench.worker.kill()
            verdict.status, verdict.reason = "fail", f"evaluator: {type(error).__name__}: {error}"
    for bench, verdict in zip(benches, verdicts):
        verdict.isolation = bench.worker.isolation
    return *verdicts, rounds


def serve(workers: int, fd: int) -> None:
    """The process's main function. workers: how many submissions it may have to hold at once."""
    nurseries = [Nursery.fork() for _ in range(workers)]  # before there is what a worker must not see
    channel = Channel(socket.socket(fileno=fd))
    try:
        (options, directory, judges), _ = channel.receive()
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.jobs))
        if options.device != "cuda":
            resource.setrlimit(resource.RLIMIT_DATA, (int((options.memory + HELD) * 2**30),) * 2)
        judges += [pid for nursery in nurseries for pid in nursery.pids()]
        arena = Arena.create(OURS + int(options.memory * 2**30) // PAGE * PAGE)
        heap, benches = Heap(arena, BASE, BASE + OURS), []
        for number, nursery in enumerate(nurseries):  # all use the one arena: each knows it at the same addresses
            own = os.path.join(directory, str(number))
            os.mkdir(own, 0o711)
            benches.append(Bench(options, nursery, own, judges, arena, heap))
        while True:
            (what, *arguments), _ = channel.receive()
            if what == "pair":
                channel.send(pair(benches, *arguments))
            elif what in ("configs", "shared_memory"):
                try:
                    channel.send(getattr(benches[0], what)(*arguments))
                except Refused as error:
                    channel.send(error)
            else:
                channel.send(benches[0].verdict(*arguments))
    except EOFError:
        pass
    finally:
        for nursery in nurseries:
            nursery.close()


def near(args: dict, rng: np.random.Generator) -> dict:
    """Sizes next to those of a case: each a step more or less, of what the sizes of its kind are multiples of."""

    def moved(name: str, sizes):
        single = isinstance(sizes, int)
        values = [sizes] if single else list(sizes)
        largest = {"m": 8, "n": 128, "k": 256}[name]
        step = min(largest, *(v & -v for v in values if v)) if any(values) else 0
        changed = [max(step, v + step * int(rng.choice((-1, 1)))) if v else 0 for v in values]
        return changed[0] if single else tuple(changed)

    while True:
        found = {name: moved(name, value) if name in "mnk" else value for name, value in args.items()}
        if any(found[name] != args[name] for name in "mnk") or not any(np.atleast_1d(args["m"])):
            return found


class Trial:
    """One case on the emulator, or untimed on a GPU: calls, each with inputs of its own."""

    def __init__(self, case: TestCase, bench: Bench):
        self.bench, self.options, self.worker = bench, bench.options, bench.worker
        self.verdict, self.args = Verdict(case.spec), case.args
        self.task = reference.task_of(case.args)
        self.exact = self.options.device != "cuda" and self.task is reference.GROUP_GEMM  # exact in any order
        self.hidden = combine_seeds(case.args["seed"], self.options.secret)
        self.rng = np.random.default_rng(combine_seeds(self.hidden, 1))

    def run(self, extra: bool) -> None:
        """Raises Refused unless every call was right."""
        if self.options.device == "cuda":
            calls = [(self.args, None)] + [(self.args, i) for i in range(1, max(2, self.options.calls) + extra)]
            calls += [(near(self.args, self.rng), len(calls))] if extra else []
            for args, hidden in calls:
                seed = self.args["seed"] if hidden is None else self.hidden + 42 * hidden
                GpuCase(self, {**args, "seed": seed}).once()
            return
        if self.options.timed:
            model = Modelling(self)
            try:
                self.verdict.modelled = model.time()
                calls = []  # an audit has been right
            except NotTimed as error:
                self.verdict.modelled = {"error": str(error)}
                self.verdict.mismatches = self.verdict.ulps = None  # of a call without what its host does
                calls = [0, 1]
        else:
            calls = [*range(max(2, self.options.calls))]
        EmulatedCalls(self).run(calls, extra)

    def check(self, group: int, got: torch.Tensor, want: torch.Tensor) -> str:
        """What is wrong with a result, or ""; counted in the verdict."""
        verdict = self.verdict
        count, problem = compare(group, got, want, self.exact)
        verdict.mismatches = (verdict.mismatches or 0) + count
        if not problem:
            verdict.ulps = max(verdict.ulps or 0, ulps(got, want) if count else 0)
        return problem

    def generate(self, args: dict, seed: int):
        return self.task.generate_input(**{**args, "seed": seed}, device=torch.device("cpu"))

    def results(self, places: list, outputs: list[torch.Tensor], taken: inputs.Taken) -> list[torch.Tensor]:
        """Live views of what was returned; raises Refused unless that is like the c tensors, and is these or new."""
        if len(places) != len(outputs):
            raise Refused(f"custom_kernel returned {len(places)} tensors for {len(outputs)} groups")
        found = []
        for group, (place, c) in enumerate(zip(places, outputs)):
            shape, stride = (tuple(map(int, place[name])) for name in ("shape", "stride"))
            dtype = str(place["dtype"])
            if (shape, dtype) != (tuple(c.shape), str(c.dtype)):
                raise Refused(f"group {group}: returned {shape} {dtype}, not {tuple(c.shape)} {c.dtype}")
            if not c.numel():
                found.append(c)
                continue
            size = inputs.extent(shape, stride)
            try:
                view = self.bench.arena.view(int(place["address"]), size)
            except ValueError:
                where = f"the returned tensor, on {str(place['device'])[:20]}, is not in the device's memory"
                raise Refused(f"group {group}: {where}") from None
            if min(stride) < 0:
                raise ValueError("a negative stride")
            if there := taken.add(int(place["address"]), size, f"the result of group {group}, maybe of another call"):
                raise Refused(f"group {group}: the returned tensor is not new, it lies in {there}")
            found.append(torch.from_numpy(view).view(torch.float16).as_strided(shape, stride))
        return found

    def judge_results(self, returned: list[torch.Tensor], data, known: inputs.Known, placed: Placed) -> None:
        """Raises Refused for wrong results or changed inputs."""
        problems = []
        for group, (got, want) in enumerate(zip(returned, known.outputs(None))):
            if want.numel() and (problem := self.check(group, got.clone().view(want.shape), want)):
                problems.append(problem)
        self.verdict.mismatches = self.verdict.mismatches or 0
        if not placed.unchanged(data):
            problems.append("the submission changed its inputs")
        if problems:
            self.worker.kill()
            raise Refused("; ".join(problems[:3]))


def taken(*placed: Placed) -> inputs.Taken:
    """Memory of the inputs of placed data."""
    found = inputs.Taken()
    for one in placed:
        outputs = one.output_addresses()
        for address, size in one.taken:
            if address not in outputs:
                found.add(address, size, "an input")
    return found


class Numbers:
    """Numbers for the objects that a worker is told of."""

    last = 0

    @classmethod
    def next(cls) -> int:
        cls.last += 1
        return cls.last


class EmulatedCalls:
    """Calls one after the other on the same object; each launch has run when the submission goes on."""

    def __init__(self, trial: Trial):
        self.trial, self.worker, self.bench = trial, trial.worker, trial.bench
        self.objects: dict[tuple, tuple[int, Placed]] = {}
        self.device = None

    def run(self, calls: list[int], extra: bool) -> None:
        """The first call has the case's own inputs, the others some that nobody knows. Raises Refused.

        From the third on every second one has former inputs in disguise: a result that was kept is a wrong result.
        """
        trial = self.trial
        plan = [(trial.args, schedule) for schedule in calls]
        if extra:
            plan += [(trial.args, 0)] if plan else []
            plan.insert(int(trial.rng.integers(1, len(plan) + 1)) if plan else 0, (near(trial.args, trial.rng), 0))
        try:
            seeds = []  # of the inputs of the case's own sizes
            for number, (args, schedule) in enumerate(plan):
                listed, disguise, seed = args is trial.args, None, trial.hidden + 42 * number
                if listed and not number:
                    seed = args["seed"]
                elif listed and len(seeds) % 2 == 0:
                    seed, disguise = int(trial.rng.choice(seeds)), int(trial.rng.integers(2**31))
                if listed:
                    seeds.append(seed)
                self.call(args, seed, schedule, disguise)
        except Refused as error:
            if args is not trial.args:
                sizes = ", ".join(f"{name} {args[name]}" for name in "mnk")
                raise Refused(f"with other sizes ({sizes}): {error}") from None
            raise
        finally:
            for _, placed in self.objects.values():
                self.device.drop(placed)
                placed.release()

    def call(self, args: dict, seed: int, schedule: int, disguise: int | None) -> None:
        trial = self.trial
        data = trial.generate(args, seed)
        if disguise is not None:
            inputs.disguise(data, inputs.draw(disguise, data))
        if self.worker.pid is None:
            self.worker.start()
            self.worker.device = emulated.Device(self.bench.arena, BASE + OURS)
        self.device = device = self.worker.device
        key = tuple(args[name] for name in "mnk")
        if key not in self.objects:
            placed = Placed(data, trial.task.on_host, self.bench.heap)
            self.objects[key] = Numbers.next(), placed
            device.register(placed)
            self.worker.ask("set-up", op="object", number=self.objects[key][0], spec=placed.spec)
        number, placed = self.objects[key]
        placed.fill(data)
        device.begin((placed,), schedule)
        begin = time.perf_counter()

        def take(message) -> dict:
            try:
                device.run(device.understand(message))
            except EmulatorError as error:
                return {"error": error.message, "kind": error.kind}
            return {"error": None}

        try:
            reply = self.worker.ask("result", take, op="call", number=number, schedule=schedule, record=False)
        except Refused:
            if device.findings:
                self.worker.kill()
                raise Refused("; ".join(device.findings)) from None
            raise
        trial.verdict.seconds += time.perf_counter() - begin
        known = inputs.Known(data)
        try:
            if device.findings:
                raise Refused("; ".join(device.findings))
            if wrong := reply.get("wrong"):
                raise Refused(str(wrong)[:1000])
            with self.worker.answering("result"):
                returned = trial.results(reply["returned"], inputs.outputs(data), taken(placed))
        except Refused:
            self.worker.kill()
            raise
        trial.judge_results(returned, data, known, placed)


class Modelling:
    """Calls in a row whose launches are noted, then timed; one of the calls, drawn afterwards, has to be right."""

    def __init__(self, trial: Trial):
        self.trial, self.worker, self.bench = trial, trial.worker, trial.bench
        self.rewritten = False

    @contextlib.contextmanager
    def prepared(self, calls: int):
        """In this block there are (a device, data, that of each call); the submission's process is a new one."""
        trial, bench = self.trial, self.bench
        data = trial.generate(trial.args, trial.hidden)
        self.worker.kill()  # the calls are the first of a process, as in any other run
        device = emulated.Device(bench.arena, BASE + OURS)
        placed = [Placed(data, trial.task.on_host, bench.heap) for _ in range(calls)]
        try:
            for one in placed:
                device.register(one)
            yield device, data, placed
        finally:
            for one in placed:
                one.show(one)
                one.release()
            bench.arena.clear(BASE + OURS, bench.arena.size - OURS)

    def shared_memory(self) -> int:
        """Dynamic bytes that a call's launches ask for, at most; none is run. Raises Refused."""
        with self.prepared(1) as (device, _, placed):
            try:
                (queue,), _ = self.note(device, placed)
            finally:
                self.worker.kill()
        return max((queued.options["dynamic_shared"] for queued in queue), default=0)

    def time(self) -> dict:
        """A reply of `modelled`. Raises NotTimed."""
        trial = self.trial
        with self.prepared(trial.task.calls) as (device, data, placed):
            try:
                queues, places = self.note(device, placed)
            except Refused as error:
                raise NotTimed(str(error)) from None
            finally:
                self.worker.kill()  # from here on nothing of the submission's runs
            begin = time.perf_counter()
            try:
                with limit(trial.options.timeout):
                    return self.check(device, data, placed, queues, places)
            except Late:
                raise NotTimed(f"no time within {trial.options.timeout:g} s") from None
            except (Refused, EmulatorError) as error:
                raise NotTimed(str(error)) from None
            except MemoryError:
                raise NotTimed("out of memory") from None
            finally:
                trial.verdict.seconds += time.perf_counter() - begin

    def note(self, device: emulated.Device, placed: list[Placed]) -> tuple[list, list]:
        """The launches of each call, and where each says that its results are."""
        queues, places, seen, held = [], [], {}, taken(*placed)  # the grader holds all results, too
        numbers = []
        for one in placed:
            numbers.append(Numbers.next())
            self.worker.ask("set-up", op="object", number=numbers[-1], spec=one.spec)
        for number in numbers:
            queue = []

            def take(message) -> dict:
                queued = device.understand(message)
                if len(queue) >= LAUNCHES:
                    raise Refused(f"more than {LAUNCHES} launches in a call")
                queue.append(queued)
                for start, size, *_ in queued.regions:
                    digest = self.digest(start, size)
                    self.rewritten |= seen.setdefault((start, size), digest) != digest
                return {"error": None}

            reply = self.worker.ask("result", take, op="call", number=number, schedule=0, record=True)
            if wrong := reply.get("wrong"):
                raise Refused(str(wrong)[:1000])
            queues.append(queue)
            with self.worker.answering("result"):
                places.append(self.trial.results(reply["returned"], inputs.outputs(placed[0].data), held))
        return queues, places

    def digest(self, start: int, size: int) -> bytes:
        """Of the contents; holes are skipped, which reading through the mapping would fill."""
        fd, at, end, found = self.bench.arena.fd, start - BASE, start - BASE + size, hashlib.blake2b()
        while at < end:
            try:
                at = os.lseek(fd, at, os.SEEK_DATA)
            except OSError:  # only holes up to the end of the file
                break
            stop = min(end, os.lseek(fd, at, os.SEEK_HOLE))
            if at < stop and (data := os.pread(fd, stop - at, at)).strip(b"\0"):
                found.update(at.to_bytes(8, "little") + data)
            at = stop
        return found.digest()

    def check(self, device: emulated.Device, data, placed: list[Placed], queues: list, places: list) -> dict:
        """The times of noted launches that turn out right. Raises NotTimed, Refused or EmulatorError."""
        trial = self.trial
        if not queues[-1]:
            raise NotTimed("custom_kernel launched no kernel of its own: nothing to time")
        first = [queued.shape for queued in queues[0]]
        for number, queue in enumerate(queues):
            if [queued.shape for queued in queue] != first:
                raise NotTimed(f"call {number} does not launch what call 0 launches")
        if self.rewritten:
            raise NotTimed("the host changes device memory between launches: how long that takes is not modelled")
        launches = [queued for queue in queues for queued in queue]
        before = device.snapshot({region[:2] for queued in launches for region in queued.regions})
        for one in placed:  # each call loads what the audited one will
            one.show(placed[0])
        placed[0].fill(data)
        profile, breakdown = trial.options.profile, trial.options.breakdown
        reply, counted = modelled.time_launches(device, launches, len(first), trial.task.calls, profile, breakdown)
        ended = [counted[i : i + len(first)] for i in range(0, reply["simulated"] * len(first), len(first))]
        if not all(emulated.alike(counts, ended[0]) for counts in ended):
            raise NotTimed("calls with equal launches do not load, store and multiply the same")
        floor = modelled.speed_of_light(trial.args)
        if reply["us"] < floor:
            raise NotTimed(f"{reply['us']:.3f} us is less than the speed of light, {floor:.3f} us")
        known = inputs.Known(data)
        for schedule in range(trial.options.calls):
            number = int(trial.rng.integers(min(2, reply["simulated"] - 1), reply["simulated"]))
            device.restore(before)
            for result in inputs.outputs(placed[number].data) + places[number]:
                result.fill_(float("nan"))
            device.begin((placed[number],), schedule)
            counts = [device.run(queued) for queued in queues[number]]
            try:
                trial.judge_results(places[number], data, known, placed[number])
            except Refused as error:
                raise NotTimed(f"the launches of a call alone do not give its result: {error}") from None
            if not emulated.alike(counts, ended[0]):
                raise NotTimed("the timed launches do not load, store and multiply what those that were checked do")
        return reply


class GpuCase:
    """A case's inputs on a GPU, in the submission's process, and their results in shared memory."""

    device = "cuda"  # where the judge computes what they should be

    def __init__(self, trial: Trial, args: dict, count: int = 1, objects: int = 1):
        """count: contents; objects: what the kernel gets to see."""
        self.trial, self.worker, self.objects = trial, trial.worker, objects
        self.placed, self.known = [], []
        for i in range(count):
            data = trial.generate(args, args["seed"] if not i else trial.hidden + 42 * i)
            self.placed.append(Placed(data, (), trial.bench.heap))
            self.placed[-1].fill(data)
            self.known.append(inputs.Known(inputs.mapped(lambda tensor: tensor.to(self.device), data)))
        self.data = data  # the last contents: all have the same sizes
        self.elements = sum(c.numel() for c in inputs.outputs(data))
        self.buffer = trial.bench.heap.take(2 * objects * self.elements)
        contents = [placed.spec for placed in self.placed]
        request = {"task": trial.task.name, "objects": objects, "results": self.buffer.ctypes.data}
        self.worker.ask("set-up", op="case", contents=contents, **request)

    def repeat(self, fresh: bool, audit: bool, timed: bool) -> float:
        """One call per object in a secret order, with fresh contents in a new disguise; the nanoseconds per call."""
        trial, count, begin = self.trial, len(self.placed), time.perf_counter()
        turn = int(trial.rng.integers(1, count)) if fresh and count > 1 else 0
        contents = [(i + turn) % count for i in range(self.objects)]
        disguises = [int(trial.rng.integers(2**31)) if fresh else None for _ in contents]
        order = trial.rng.permutation(self.objects).tolist()
        self.buffer[:] = 0xFF  # NaN
        request = {"contents": contents, "disguises": disguises, "order": order, "audit": audit, "timed": timed}
        reply = self.worker.ask("result", op="repeat", **request)
        trial.verdict.seconds += time.perf_counter() - begin
        problems, bits = [], torch.from_numpy(self.buffer).view(torch.float16).view(self.objects, -1)
        for i in range(self.objects):
            drawn = inputs.draw(disguises[i], self.data) if disguises[i] is not None else None
            offset = 0
            for group, want in enumerate(self.known[contents[i]].outputs(drawn)):
                got = bits[i, offset : offset + want.numel()].clone().view(want.shape)
                offset += want.numel()
                if want.numel() and (problem := trial.check(group, got, want)):
                    problems.append(problem)
        trial.verdict.mismatches = trial.verdict.mismatches or 0
        if problems:
            raise Refused("; ".join(problems[:3]))
        return reply["ns"]

    def once(self) -> None:
        try:
            self.repeat(fresh=False, audit=False, timed=False)
        finally:
            self.release()

    def release(self) -> None:
        for placed in self.placed:
            placed.release()
        self.trial.bench.heap.give(self.buffer.ctypes.data, len(self.buffer))


class MeasuredTrial(Trial):
    """A case that is timed on a GPU, back to back as the grader does, every result of every repeat compared."""

    case: GpuCase | None = None

    def call(self, fresh: bool, audit: bool = False) -> float:
        return self.case.repeat(fresh, audit, timed=True)

    @contextlib.contextmanager
    def set_up(self):
        """In this block the inputs are on the GPU."""
        self.case = GpuCase(self, self.args, self.task.calls, self.task.calls)
        try:
            yield inputs.read_bytes(self.case.data)
        finally:
            self.case.release()

    def run(self, extra: bool) -> None:
        with self.set_up() as read:
            measure([self], read)
        if extra:
            GpuCase(self, near(self.args, self.rng)).once()


def measure(trials: list[MeasuredTrial], read: int) -> list[list[float]]:
    """Times trials, in an order that is drawn for each round, until each is precise enough; the nanoseconds of each
    trial and round. read: bytes that a call has to read. Raises Refused, whose `trial` is the one that failed."""

    def call(trial: MeasuredTrial, **how) -> float:
        try:
            ns = trial.call(**how)
            check_time(ns, read)
        except Refused as error:
            error.trial = trial
            raise
        return ns

    def precise() -> bool:
        spent = (time.perf_counter_ns() - begin) / len(trials)
        return all(precise_enough(ns, spent, 30e9) for ns in durations)

    for trial in trials:
        call(trial, fresh=False, audit=True)  # compiles, too
    rng, durations, begin = trials[0].rng, [[] for _ in trials], time.perf_counter_ns()
    while len(durations[0]) < 100 and not precise():
        audit = rng.random() < AUDITED
        for i in rng.permutation(len(trials)):
            ns = call(trials[i], fresh=True, audit=audit)
            durations[i] += [] if audit else [ns]
    for trial, ns in zip(trials, durations):
        call(trial, fresh=True, audit=True)
        trial.verdict.times = calculate_stats(ns)
    return durations


def measure_in_turns(trials: list[MeasuredTrial]) -> Stats | None:
    """Verdicts on two trials that are timed together; by how many nanoseconds the second takes longer, per round, or
    None where one has failed."""
    try:
        with contextlib.ExitStack() as stack:
            reads = []
            for trial in trials:
                failed = trial
                reads.append(stack.enter_context(trial.set_up()))
            first, second = measure(trials, *reads[:1])
    except Refused as error:
        failed = getattr(error, "trial", failed)
        for trial in trials:
            trial.verdict.reason = str(error) if trial is failed else "not timed: the other one has failed"
            trial.verdict.times = None
        return None
    for trial in trials:
        trial.verdict.status, trial.verdict.reason = "pass", ""
    return calculate_stats([b - a for a, b in zip(first, second)])
