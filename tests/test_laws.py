"""Laws of the architecture that can be read off the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tessera"
MODULES = sorted(PACKAGE.rglob("*.py"))

ARROWS: dict[str, tuple[str, ...]] = {
    "support": (),
    "maths": ("envs.base",),
    "networks": ("maths", "envs.base"),
    "stores": ("maths",),
    "envs": ("maths.search",),
    "algorithms": ("maths", "networks", "stores", "envs.base"),
    "presets": ("algorithms",),
    "graph": (),
    "policies": ("graph",),
    "program": ("algorithms.contract", "stores.base", "graph", "envs.base", "maths"),
    "channels": ("program", "graph", "algorithms.contract"),
    "engines": ("channels", "program", "graph", "algorithms.contract", "envs.base"),
    "profiling": ("engines", "channels", "program", "graph", "algorithms.contract", "envs.base"),
    "planning": ("profiling", "engines", "channels", "program", "graph", "policies", "algorithms", "envs"),
    "evaluation": ("engines", "channels", "program", "graph", "policies", "algorithms.contract", "envs"),
    "runs": (
        "maths.tuning",
        "evaluation",
        "engines",
        "program",
        "graph",
        "planning.planner",
        "algorithms.contract",
        "envs.base",
        "stores",
    ),
    "dash": ("runs", "graph", "evaluation.intervals"),
    "agent": ("api", "runs", "evaluation", "program", "presets", "algorithms.contract", "envs.base"),
    "cli": (
        "api",
        "agent",
        "dash",
        "runs",
        "evaluation",
        "planning",
        "profiling",
        "systems",
        "presets",
        "engines.ray_backend",
        "graph",
        "policies",
        "algorithms",
    ),
}
"""Room -> what it may import besides itself and what everyone may: imports point one way."""
EVERYONE = ("errors", "support")
ROOT_MODULES: dict[str, tuple[str, ...]] = {
    "__init__": (*(room for room in ARROWS if room != "cli"), "api", "errors"),
    "__main__": ("cli.main",),
    "api": tuple(room for room in ARROWS if room != "cli"),
    "errors": (),
    "systems": ("algorithms",),
}
"""What the few modules outside of the rooms may import."""

PLACES = re.compile(
    r"axis_name|pmean|psum|shard_map|multiprocessing|\bray\b|jax\.(local_)?devices|process_index|\brank\b"
)
PACKAGE_HOSTS = re.compile(
    r"--(extra-)?index" + r"-url|--find-links|--trusted-host"
    r"|https?://[^\s\"'<>)]*(pypi|pythonhosted|/simple\b|index|mirror|proxy|artifact|nexus|\.whl)",
    re.IGNORECASE,
)


def imported(source: str) -> set[str]:
    """Every module that a source imports, at any depth; names imported from a package count as modules too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
            if node.module == "tessera":
                found |= {f"tessera.{alias.name}" for alias in node.names}
    return found


def within(module: str, allowed: tuple[str, ...]) -> bool:
    return any(module == f"tessera.{a}" or module.startswith(f"tessera.{a}.") for a in allowed)


def against_the_arrows(room: str, source: str) -> set[str]:
    """Imports of a module in `room`, or of a root module of that name, that point the wrong way."""
    allowed = (room, *({**ARROWS, **ROOT_MODULES}[room]), *EVERYONE)
    if "__version__" in source:  # the one name that lives in the package itself
        allowed += ("__version__",)
    return {m for m in imported(source) if m.startswith("tessera.") and not within(m, allowed)}


def driving_loops(source: str) -> list[int]:
    """Lines of the loops that call `advance`, or ask for it."""
    loops = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.While | ast.For | ast.comprehension)]
    return [getattr(n, "lineno", 0) for n in loops if any(calls_advance(x) for x in ast.walk(n))]


def calls_advance(node: ast.AST) -> bool:
    """Whether an engine is called, or a request is made."""
    if not isinstance(node, ast.Call):
        return False
    asks = isinstance(node.func, ast.Name) and node.func.id == "Advance"
    return asks or (isinstance(node.func, ast.Attribute) and node.func.attr == "advance")


FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
LOOPS = ast.For | ast.AsyncFor | ast.While | COMPREHENSIONS


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function, a loop or a module, without those of functions that it only defines."""
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from own_nodes(child)


def name_of(used: ast.AST) -> str:
    """How a function is called: `name`, or `.name` as a member of something."""
    return f".{used.attr}" if isinstance(used, ast.Attribute) else getattr(used, "id", "")


def called(scope: ast.AST) -> set[str]:
    """Names of the functions that a scope calls, or lets others call."""
    found: set[str] = set()
    for call in own_nodes(scope):
        if isinstance(call, ast.Call):
            handed_on = call.args if name_of(call.func).lstrip(".") in ("partial", "submit", "map", "reduce") else []
            found |= {name_of(x) for x in (call.func, *handed_on)}
    return found


def repeats_a_body(loop: ast.AST) -> bool:
    """Whether a loop goes through the body of a node a number of times."""
    if not any(isinstance(n, ast.Attribute) and n.attr == "body" for n in own_nodes(loop)):
        return False
    if isinstance(loop, ast.While):
        return True
    over = [g.iter for g in loop.generators] if isinstance(loop, COMPREHENSIONS) else [getattr(loop, "iter", loop)]
    names = {name_of(n).lstrip(".") for iterable in over for n in ast.walk(iterable)}
    return bool(names & {"range", "count", "repeat", "cycle"})


def interpreters(source: str) -> set[str]:
    """Functions that run a program in a loop of their own.

    Such a loop calls the functions of nodes, be it through functions of the same module or through those that `drive`
    is made of; or it goes through the body of a node a number of times, however that is run.
    """
    tree = ast.parse(source)
    scopes = {n.name: n for n in ast.walk(tree) if isinstance(n, FUNCTIONS)} | {"the module": tree}
    runners = {".function"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "tessera.program.interpreter":
            runners |= {alias.asname or alias.name for alias in node.names} - {"drive"}
    while more := {n for name, x in scopes.items() if called(x) & runners for n in (name, f".{name}")} - runners:
        runners |= more
    found = set()
    for name, scope in scopes.items():
        for loop in (n for n in own_nodes(scope) if isinstance(n, LOOPS)):
            if called(loop) & runners or repeats_a_body(loop):
                found.add(name)
    return found


def texts() -> Iterator[Path]:
    """Every file of the repository that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path != Path(__file__).resolve():
            yield path


@pytest.mark.parametrize("package", ARROWS)
def test_imports_point_one_way(package):
    wrong = {str(p): w for p in (PACKAGE / package).rglob("*.py") if (w := against_the_arrows(package, p.read_text()))}
    assert wrong == {}


def test_an_import_against_the_arrows_would_be_found():
    assert against_the_arrows("maths", "def f():\n    from tessera.engines.serial import SerialEngine")
    assert against_the_arrows("policies", "from tessera import train") == {"tessera.train"}
    assert against_the_arrows("algorithms", "import tessera.envs.gymnax") == {"tessera.envs.gymnax"}


def test_every_room_has_its_arrows():
    assert {p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()} == set(ARROWS)
    assert {p.stem for p in PACKAGE.glob("*.py")} == set(ROOT_MODULES)


@pytest.mark.parametrize("module", ROOT_MODULES)
def test_modules_outside_of_the_rooms_import_only_what_they_may(module):
    assert against_the_arrows(module, (PACKAGE / f"{module}.py").read_text()) == set()


def test_no_arrow_points_back():
    """Rooms can be sorted so that each imports only rooms before it."""
    left = {room: {a.split(".")[0] for a in arrows if a.split(".")[0] in ARROWS} for room, arrows in ARROWS.items()}
    left = {room: arrows - {"envs"} for room, arrows in left.items()}  # of envs only the interface, envs.base
    while left:
        ready = {room for room, arrows in left.items() if not arrows & left.keys()}
        assert ready, f"a circle: {left}"
        left = {room: arrows for room, arrows in left.items() if room not in ready}


def test_no_two_classes_have_one_name():
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_nothing_imports_the_command_line():
    outside = [p for p in MODULES if "cli" not in p.relative_to(PACKAGE).parts]
    importers = {p.name for p in outside if any(within(m, ("cli",)) for m in imported(p.read_text()))}
    assert importers <= {"__main__.py"}


@pytest.mark.parametrize("package", ["algorithms", "maths", "networks"])
def test_no_algorithm_knows_where_it_runs(package):
    lines = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in (PACKAGE / package).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if PLACES.search(line)
    ]
    assert lines == []


def test_the_training_loop_is_written_once():
    found = {p.name: lines for p in MODULES if (lines := driving_loops(p.read_text()))}
    assert list(found) == ["run_loop.py"]
    assert len(found["run_loop.py"]) == 1
    assert driving_loops("for i in range(3):\n    if i:\n        engine.advance(1)") == [1]
    assert driving_loops("while True:\n    reports = yield Advance(1)") == [1]


def test_a_program_has_one_interpreter_on_the_host_and_one_that_traces():
    found = {str(p.relative_to(PACKAGE)): names for p in MODULES if (names := interpreters(p.read_text()))}
    assert found.keys() == {"program/interpreter.py", "program/compile.py"}
    drive = ast.parse((PACKAGE / "program" / "interpreter.py").read_text())
    assert len([n for n in ast.walk(drive) if isinstance(n, LOOPS) and repeats_a_body(n)]) == 1


SECOND_INTERPRETERS = {
    "in one function": """
def turns(loop, slots, port):
    for step in range(loop.count):
        slots[loop.index] = step
        for node in loop.body:
            match node:
                case Op():
                    slots.update(zip(node.writes, node.function(*(slots[r] for r in node.reads))))
                case Recv():
                    slots[node.slot] = port.receive(node.channel)
""",
    "nodes are run by another function": """
def run_one(node, slots):
    slots.update(zip(node.writes, node.function(*[slots[r] for r in node.reads])))

def collect(nodes, slots):
    while slots["count"]:
        run_all(nodes, slots)

def run_all(nodes, slots):
    [run_one(node, slots) for node in nodes]
""",
    "nodes are run by a function that is handed in": """
def turns(loop, slots, call):
    step = 0
    while step < loop.count:
        for hosted, run in itertools.groupby(loop.body, is_host):
            yield partial(call_all, list(run), slots, call)
        step += 1
""",
    "nodes are run by a function that is handed on": """
def serve(segments, executor):
    for segment in segments:
        executor.submit(step, segment)

def step(segment):
    return segment.function({}, {})
""",
    "nodes are run by a piece of drive": """
from tessera.program.interpreter import call as run_segment

def collect(nodes, slots):
    for node in nodes:
        run_segment(node, slots)
""",
    "outside of any function": """
for segment in segments:
    segment.function({}, slots)
""",
}


@pytest.mark.parametrize("source", SECOND_INTERPRETERS.values(), ids=SECOND_INTERPRETERS)
def test_a_second_interpreter_would_be_found(source):
    assert interpreters(source)


def test_what_only_changes_a_program_or_drives_it_is_no_interpreter():
    changes = """
def changed(nodes):
    return [replace(n, function=wrapped(n)) if isinstance(n, Op) else replace(n, body=changed(n.body)) for n in nodes]

def wrapped(node):
    def function(*values):
        return node.function(*values)
    return function
"""
    assert interpreters(changes) == set()
    drives = "from tessera.program.interpreter import drive\nfor node in drive(program, slots):\n    wait(node)"
    assert interpreters(drives) == set()


def test_the_run_loop_knows_no_engine_class():
    source = (PACKAGE / "runs" / "run_loop.py").read_text()
    engines = {f"tessera.engines.{name}" for name in ("serial", "local", "ray")}
    assert not imported(source) & engines
    assert not any(m.startswith("tessera.engines.driver") for m in imported(source))
    calls = {n.func.id for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert not calls & {"isinstance", "getattr", "hasattr", "type"}


def test_nothing_is_pickled():
    pickles = ("pickle", "cloudpickle", "dill", "joblib", "shelve")
    found = {p.name for p in MODULES if any(m.split(".")[0] in pickles for m in imported(p.read_text()))}
    assert found == set()


def test_no_file_names_a_host_to_fetch_packages_from():
    assert PACKAGE_HOSTS.search("--index" + "-url x")
    assert PACKAGE_HOSTS.search("see https://pypi.org/simple/jax")
    found = {str(p) for p in texts() if PACKAGE_HOSTS.search(p.read_text(errors="ignore"))}
    assert found == set()


def test_importing_the_package_does_not_import_jax():
    code = "import sys, tessera; print([m for m in ('jax', 'numpy', 'flax') if m in sys.modules], tessera.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split("]")[0] == "["
