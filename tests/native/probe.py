"""How tests build the C parts, and talk to a program that obeys one command a line."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

NATIVE = Path(__file__).parents[2] / "native"
STRICT = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"]
WAIT_SECONDS = 20


def compile_c(target: Path, *arguments: str | Path, compiler: str = "cc") -> Path:
    command = [compiler, *STRICT, *map(str, arguments), "-o", str(target), "-lpthread", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return target


def layout(
    header: str,
    structs: Mapping[str, Sequence[str]],
    constants: Sequence[str],
    include: Path,
    place: Path,
    *options: str,
) -> str:
    """Sizes, offsets and values as one header declares them, a line each."""
    lines = [f'P("{name}", {name})' for name in constants]
    for struct, fields in structs.items():
        lines.append(f'P("{struct}", sizeof({struct}))')
        for field in fields:
            lines.append(f'P("{struct}.{field}", offsetof({struct}, {field}))')
            lines.append(f'P("sizeof {struct}.{field}", sizeof((({struct} *)0)->{field}))')
    body = '#define P(name, value) printf("%s %lld\\n", name, (long long)(value));\nint main(void) {\n'
    source = place / "layout.c"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include {header}\n{body}" + "\n".join(lines) + "\n}\n"
    )
    program = compile_c(place / "layout", *options, f"-I{include}", f"-I{NATIVE}", source)
    return subprocess.run([program], capture_output=True, text=True, timeout=WAIT_SECONDS, check=True).stdout


class Probe:
    """One running probe; each answer is two numbers, and the first line says who it is.

    A forked or executed successor answers through the same object.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        env: dict[str, str],
        log: Path,
        *,
        stderr: int | None = None,
        keeps: Sequence[int] = (),
    ) -> None:
        self._log = log
        with log.open("wb") as own_log:
            self.process = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=own_log if stderr is None else stderr,
                bufsize=0,
                pass_fds=keeps,
            )
        self.first = self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())

    def ask(self, line: str) -> tuple[int, int]:
        self.tell(line)
        return self.answer()

    def answer(self) -> tuple[int, int]:
        assert self.process.stdout
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self.process.stdout], [], [], WAIT_SECONDS)
            assert ready, f"the probe did not answer; it said: {self.said()}"
            part = self.process.stdout.read(1)
            assert part, f"the probe ended; it said: {self.said()}"
            line += part
        first, second = line.split()
        return int(first), int(second)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self._log.read_text()
