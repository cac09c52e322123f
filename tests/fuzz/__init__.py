"""Bad input of every kind, thrown at the command line: `nox -s fuzz -- --minutes 20`.

A target (`targets.py`) has files that are right, a command that reads them, and how they are spoilt. Each input is given to
the command line in a worker process (`attempt.py`), which a watchdog ends where it hangs (`pool.py`), and what came of it is
held to what hloracle promises of bad input (`judge.py`): one clear line, status 2, nothing left behind.

An input depends on the seed, the target and its number alone, so each can be made again. Inputs are drawn by `random` and
not by hypothesis: the process that draws them has to outlive what crashes or hangs. None is guided by coverage, either, as
atheris would: a tracer of Python's lines makes the readers several times slower, and the errors that are left in them lie in
values and not in branches that are hard to reach.
"""
