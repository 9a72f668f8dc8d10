"""The section `evaluate:` of a profile. Imports nothing heavy."""

from dataclasses import field

from config.schema import section

# What evals.tasks.registry holds (a test compares them): named here, so that a profile is checked without the tasks.
TASK_NAMES = (
    *("add_2digit", "sub_2digit", "equation", "word_problem", "division", "times_table", "calculator"),
    *("questions", "greetings", "names", "unknown", "haiku_575", "haiku_topic", "haiku_novel"),
)


@section
class EvaluateConfig:
    """What is measured on the finished chat model."""

    tasks: dict[str, float] = field(default_factory=dict)  # name of a task -> the share it should reach
    prompts: int = 500  # held-out prompts a task, at least
    seed: int = 1
    max_tokens: int = 128
    chat_prompts: tuple[str, ...] = ()  # asked at the end, as the chat page would
    validation_rows: int = 2_000  # rows of the validation split, at most

    def __post_init__(self) -> None:
        if min(self.prompts, self.max_tokens, self.validation_rows) < 1:
            raise ValueError("prompts, max_tokens and validation_rows are at least 1")
        for name, floor in self.tasks.items():
            if not 0 <= floor <= 1:
                raise ValueError(f"the floor of `{name}` is {floor}; expected 0 to 1")
