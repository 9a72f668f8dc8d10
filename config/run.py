"""The section `run:`: how a run is carried out. Nothing here changes weights, so no stage tracks it."""

from config.schema import section


@section
class RunConfig:
    """Processes, intervals and watchfulness of a run."""

    processes: int = 1  # ranks on this machine; 0: one a GPU, or one where there is none
    threads: int = 0  # CPU threads a rank; 0: every core, shared among the ranks
    log_updates: int = 10  # updates between two log lines
    checkpoint_updates: int = 200  # updates between two checkpoints
    keep_checkpoints: int = 2
    sample_count: int = 8  # times a stage answers the fixed prompts; 0: never
    validation_count: int = 4  # times a stage measures its validation loss, the end included; 0: never
    prefetch: int = 4  # updates that the loader keeps ready
    sample_texts: tuple[str, ...] = ()  # beginnings that the model goes on with during pretraining
    sample_prompts: tuple[str, ...] = ()  # questions that it answers during midtrain and sft

    def __post_init__(self) -> None:
        if min(self.processes, self.threads, self.sample_count, self.validation_count) < 0:
            raise ValueError("processes, threads, sample_count and validation_count are at least 0")
        if min(self.log_updates, self.checkpoint_updates, self.keep_checkpoints, self.prefetch) < 1:
            raise ValueError("log_updates, checkpoint_updates, keep_checkpoints and prefetch are at least 1")
