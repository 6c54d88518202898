"""Who may import whom, and who may know what: rules of the layout, read off the source.

The package is a list of layers, and imports only point up it: errors, plan, wire, device, ring, training, cli.
``plan`` uses the standard library only.  The folders of ``wire`` are a list of floors, and imports only point up that,
too; no files import each other in a circle.  Only ``wire/arrays`` knows the kinds of array.  Importing ``mpiring`` or
``mpiring.plan`` starts nothing.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import mpiring

ROOT = Path(mpiring.__file__).parent
LAYERS = ["errors", "plan", "wire", "device", "ring", "training", "cli"]
FLOORS = ["settings", "reduce", "arrays", "gpu_aware", "transport", "opening"]
FLOORS += ["node", "execute", "collectives", "ring"]
SOURCES = {
    str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.py"))
}


# ---- imports point up the list --------------------------------------------------------------------


def layer_of(path):
    return Path(path).with_suffix("").parts[0]


def imported(path, source):
    """(line, module) of each import anywhere in a source, in full; type-checking ones too."""
    package = ["mpiring", *Path(path).parts[:-1]]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module
            if module == "mpiring" or not node.module:  # from . import name: a module
                yield from ((node.lineno, f"{module}.{a.name}") for a in node.names)


def forbidden_imports(path, source):
    """What a file imports against the rules, in words."""
    layer, found = layer_of(path), list[str]()
    if layer == "__init__":
        return (
            found  # loads lazily whatever is public; see the tests of importing below
        )
    if layer not in LAYERS and layer != "__main__":
        return [f"{path}: is in no layer"]
    if layer == "wire" and Path(path).parts[1] not in [*FLOORS, "__init__.py"]:
        return [f"{path}: is on no floor"]
    rank = len(LAYERS) if layer == "__main__" else LAYERS.index(layer)
    for line, module in imported(path, source):
        top, _, rest = module.partition(".")
        if top == "mpiring":
            other, _, deeper = rest.partition(".")
            if other in LAYERS and LAYERS.index(other) > rank:
                found.append(
                    f"{path}:{line}: {layer} imports {other}, which is below it"
                )
            elif layer == other == "wire":
                mine, theirs = Path(path).parts[1], deeper.partition(".")[0]
                if theirs in FLOORS and FLOORS.index(theirs) > FLOORS.index(mine):
                    found.append(
                        f"{path}:{line}: wire/{mine} imports wire/{theirs}, which is below it"
                    )
        elif layer in ("errors", "plan") and top not in sys.stdlib_module_names:
            found.append(f"{path}:{line}: {layer} imports {top}, not standard library")
    return found


@pytest.mark.parametrize("path", SOURCES)
def test_imports_point_up_the_list(path):
    assert forbidden_imports(path, SOURCES[path]) == []


@pytest.mark.parametrize(
    "path, source",
    [
        ("plan/cost.py", "import numpy"),
        ("plan/cost.py", "import numpy.linalg as la"),
        ("plan/cost.py", "def f():\n    from mpi4py import MPI"),
        ("plan/cost.py", "from ..wire import arrays"),
        ("plan/cost.py", "from .. import ring"),
        ("plan/cost.py", "from mpiring.wire.transport.local import first"),
        ("plan/cost.py", "from mpiring import wire"),
        ("plan/cost.py", "if TYPE_CHECKING:\n    from ..ring import Ring"),
        ("errors.py", "from .plan import Schedule"),
        ("wire/node/shared.py", "from ...ring import Ring"),
        ("wire/ring/session.py", "from ...training import gradients"),
        ("wire/node/shared.py", "from ..collectives.reductions import Collectives"),
        ("wire/node/shared.py", "from ..collectives import reductions"),
        ("wire/node/shared.py", "from .. import execute"),
        ("wire/arrays/host.py", "from mpiring.wire.transport import protocol"),
        (
            "wire/opening/member.py",
            "if TYPE_CHECKING:\n    from ..node.ways import Ways",
        ),
        ("wire/deep/er.py", ""),
        ("wire/shared.py", ""),
        ("ring.py", "from .training.gradients import average_gradients"),
        ("ring.py", "import mpiring.cli"),
        ("wire/node/shared.py", "from ... import device"),
        ("device.py", "from .ring import Ring"),
        ("training/x.py", "from ..cli import main"),
        ("elsewhere.py", ""),
    ],
)
def test_the_rule_can_be_broken(path, source):
    assert len(forbidden_imports(path, source)) == 1


@pytest.mark.parametrize(
    "path, source",
    [
        (
            "plan/cost.py",
            "import math\nfrom .segments import Segments\nfrom ..errors import X",
        ),
        (
            "wire/node/shared.py",
            "import numpy\nfrom mpi4py import MPI\nfrom ...plan import verify",
        ),
        ("ring.py", "from .wire import mpi\nfrom .errors import RingError"),
        ("cli/doctor/child.py", "from mpiring.device import find_gpus"),
        ("cli/show.py", "from ..training import gradients\nfrom ..ring import Ring"),
        ("__main__.py", "from .cli import main"),
        ("wire/node/shared.py", "from ... import __version__"),
    ],
)
def test_the_rule_can_be_kept(path, source):
    assert forbidden_imports(path, source) == []


# ---- no circle ----------------------------------------------------------------------------------------


def module_of(path):
    return ".".join(["mpiring", *Path(path).with_suffix("").parts]).removesuffix(
        ".__init__"
    )


def circle(sources):
    """Files that import each other in a circle, in order; none if there is no circle.  Lazy imports do not count."""
    modules = {module_of(path): path for path in sources}
    imports = {
        path: {modules[name] for name in eagerly_imported(path, source, modules)}
        for path, source in sources.items()
    }
    done: set[str] = set()

    def look(path, way):
        if path in way:
            return way[way.index(path) :]
        if path not in done:
            for other in sorted(imports[path]):
                if found := look(other, [*way, path]):
                    return found
            done.add(path)
        return []

    return next(filter(None, (look(path, []) for path in sources)), [])


def eagerly_imported(path, source, modules):
    """Of ``modules`` those that a file imports when it is imported, or for its types."""
    tree = ast.parse(source)
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    lazy = {
        inner.lineno
        for node in ast.walk(tree)
        if isinstance(node, functions)
        for inner in ast.walk(node)
        if isinstance(inner, (ast.Import, ast.ImportFrom))
    }
    found: dict[int, set[str]] = {}
    for line, module in imported(path, source):
        if module in modules and line not in lazy:
            found.setdefault(line, set()).add(module)
    # Of "from . import name" the package is no part: what counts is the module of that name.
    return {
        module
        for there in found.values()
        for module in there
        if not any(other.startswith(module + ".") for other in there)
    }


def test_no_circle():
    assert circle(SOURCES) == []


@pytest.mark.parametrize(
    "b, found",
    [
        ("from .a import x", ["a.py", "b.py"]),
        ("from . import a", ["a.py", "b.py"]),
        ("if TYPE_CHECKING:\n    from .a import X", ["a.py", "b.py"]),
        ("def f():\n    from .a import x", []),
        ("import os", []),
    ],
)
def test_a_circle_is_seen(b, found):
    assert circle({"a.py": "from .b import y", "b.py": b}) == found


# ---- only wire/arrays knows the kinds of array ------------------------------------------------------

KNOWS = "wire/arrays/"
LIBRARIES = {"cupy", "torch", "jax"}
INTERFACES = {"__cuda_array_interface__", "__array_interface__", "__dlpack__"}
# What works on NumPy arrays only, or asks an array of what kind it is.
NUMPY_ONLY = {
    "asarray",
    "asanyarray",
    "array",
    "ascontiguousarray",
    "ndarray",
    "generic",
}
NUMPY_ONLY |= {"may_share_memory", "shares_memory", "copyto", "concatenate"}
# These make small arrays of their own, and see none of the user's.
OWN_ARRAYS = {
    "cli/bench/lecture.py": {"copyto"},
    "cli/bench/peers.py": {"copyto"},
    "wire/transport/communicators.py": {"array"},
    "training/agreement.py": {"array"},
}


def knowledge_of_kinds(path, source):
    """Where a file knows the kind of an array, in words; docstrings may speak of it."""
    found = []
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        names: set[str] = set()
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Name):
            names = {node.id}
        elif isinstance(node, ast.Attribute):
            names = {node.attr} & (INTERFACES | LIBRARIES)
            if isinstance(node.value, ast.Name) and node.value.id in ("np", "numpy"):
                if node.attr in NUMPY_ONLY - OWN_ARRAYS.get(path, set()):
                    found.append(f"{path}:{line}: numpy.{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in docstrings:
                names = {node.value}
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [a.name for a in node.names] + [
                getattr(node, "module", None) or ""
            ]
            names = {module.partition(".")[0] for module in modules}
            if isinstance(node, ast.ImportFrom) and node.module == "numpy":
                wrong = {a.name for a in node.names} & NUMPY_ONLY
                found += [f"{path}:{line}: numpy.{name}" for name in wrong]
        for name in names & (INTERFACES | LIBRARIES):
            found.append(f"{path}:{line}: {name}")
    return found


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if not path.startswith(KNOWS)]
)
def test_nobody_else_knows_the_kinds_of_array(path):
    # The doctor reports on libraries: it may name them.
    if path.startswith("cli/"):
        found = [f for f in knowledge_of_kinds(path, SOURCES[path]) if "numpy." in f]
    else:
        found = knowledge_of_kinds(path, SOURCES[path])
    assert found == []


def test_arrays_does_know_them():
    found = " ".join(
        note
        for path, source in SOURCES.items()
        if path.startswith(KNOWS)
        for note in knowledge_of_kinds(path, source)
    )
    assert "cupy" in found and "__array_interface__" in found
    assert "numpy.asarray" in found


@pytest.mark.parametrize(
    "source",
    [
        "import cupy",
        "from cupy import cuda",
        "import cupy.cuda as c",
        "sys.modules['cupy']",
        "x.__cuda_array_interface__",
        "hasattr(x, '__cuda_array_interface__')",
        "np.asarray(x)",
        "from numpy import asarray",
        "isinstance(x, np.ndarray)",
        "def f(x):\n    import torch",
        "kind = {'torch': 1}",
    ],
)
def test_knowledge_is_seen(source):
    assert len(knowledge_of_kinds("wire/execute/steps.py", source)) == 1


def test_docstrings_may_speak_of_kinds():
    assert knowledge_of_kinds("ring.py", '"""cupy"""\ndef f():\n    "cupy"\n') == []


# ---- importing starts nothing ---------------------------------------------------------------------

HEAVY = [
    "mpi4py",
    "numpy",
    "cupy",
    "ml_dtypes",
    "llvmlite",
    "torch",
    "jax",
    "matplotlib",
]


def loaded_by(code):
    """Which heavy libraries a fresh interpreter has after running ``code``."""
    check = f"import sys; print([m for m in {HEAVY} if m in sys.modules])"
    job = subprocess.run(
        [sys.executable, "-S", "-c", f"{PATHS}\n{code}\n{check}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return job.stdout.strip()


# Without site, so that nothing but our import can load a library.
PATHS = f"import sys; sys.path[:] = {[str(ROOT.parent), *sys.path]!r}"


@pytest.mark.parametrize(
    "code",
    [
        "import mpiring",
        "import mpiring; dir(mpiring); mpiring.__version__",
        "import mpiring.plan",
        "import mpiring; mpiring.plan.verify(mpiring.plan.ring_allreduce(4))",
        "from mpiring import plan, RingError, ScheduleError, DeadlockError",
        "from mpiring import choose_device, local_rank; local_rank()",
        "from mpiring.plan import *",
    ],
)
def test_importing_starts_nothing(code):
    assert loaded_by(code) == "[]"


def test_importing_could_start_something():
    assert "numpy" in loaded_by("import mpiring.wire.arrays")
    assert "numpy" in loaded_by("import mpiring.plan, numpy")
    assert "llvmlite" not in loaded_by("import mpiring.wire.collectives.reductions")
    assert "mpi4py" in loaded_by("from mpi4py import rc; import mpiring.plan")


@pytest.mark.parametrize("missing", ["numpy", "mpi4py"])
def test_the_plan_works_where_a_library_is_missing(missing):
    use = "from mpiring.plan import *; print(verify(ring_allreduce(3)).order_text(0))"
    told = loaded_by(f"sys.modules[{missing!r}] = None; {use}").splitlines()
    assert told == ["(x1 op x2) op x0", f"['{missing}']"]  # there, but as missing
