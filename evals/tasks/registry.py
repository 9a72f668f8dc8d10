"""Every task by name, in the order in which reports show them."""

from collections.abc import Iterable

from evals.task import Task
from evals.tasks import haiku, replies
from evals.tasks.haiku import Poems


def tasks(training_poems: Poems) -> dict[str, Task]:
    """All tasks; `training_poems` gives the poems of the run's training data (data.synthetic.corpus.poems)."""
    found = [replies.task(name) for name in replies.JUDGES] + haiku.tasks(training_poems)
    return {task.name: task for task in found}


def _unset() -> Iterable[str]:
    raise ValueError("haiku_novel needs the training poems: use registry.tasks(training_poems)")


# For the names and every task but `haiku_novel`, whose items need the poems of a run.
TASKS: dict[str, Task] = tasks(_unset)
