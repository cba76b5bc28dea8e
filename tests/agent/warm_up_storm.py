"""How often the first square root of a process is wrong: `python -m tests.agent.warm_up_storm 2000 [--made]`.

Every process is forked from one that has imported torch and computed nothing. It takes the same square roots twice;
the second time they are always right. Prints how many processes had a wrong first time, and the worst error.
"""

import os
import sys
import traceback

# More threads than processors, which sleep at once: so the race is lost oftener.
os.environ.update(OMP_NUM_THREADS="4", GOMP_SPINCOUNT="1000")

import numpy as np
import torch

from carpool.agent import warm_up

NUMBERS = 1 << 16


def first_error(numbers: torch.Tensor, *, is_made: bool) -> float:
    """The largest relative error of this process's first square roots."""
    if is_made:
        warm_up.make_first_calls(torch)
    first, second = numbers.sqrt(), numbers.sqrt()
    return float(((first - second).abs() / second).max())


def fork_and_ask(numbers: torch.Tensor, *, is_made: bool) -> float:
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(sink, repr(first_error(numbers, is_made=is_made)).encode())
            code = 0
        except BaseException:  # noqa: BLE001 - this is a copy of the process: nothing of it may run on
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(sink)
    answer = os.read(source, 64)
    os.close(source)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        sys.exit(f"a process ended with {code}")
    return float(answer)


def main() -> None:
    starts, is_made = int(sys.argv[1]), "--made" in sys.argv
    rng = np.random.default_rng(0)
    numbers = torch.from_numpy(rng.random(NUMBERS, dtype=np.float32) + np.float32(1e-3))
    errors = [fork_and_ask(numbers, is_made=is_made) for _ in range(starts)]
    print(f"{sum(error > 0 for error in errors)} of {starts} wrong, by {max(errors):.1e} at most")


if __name__ == "__main__":
    main()
