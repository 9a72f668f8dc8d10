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
    loader_slots: int = 8  # micro-batches that lie ready on the device, or are on their way there
    loader_threads: int = 2  # that read them
    sample_texts: tuple[str, ...] = ()  # beginnings that the model goes on with during pretraining
    sample_prompts: tuple[str, ...] = ()  # questions that it answers during midtrain and sft

    def __post_init__(self) -> None:
        if min(self.processes, self.threads, self.sample_count, self.validation_count) < 0:
            raise ValueError("processes, threads, sample_count and validation_count are at least 0")
        if min(self.log_updates, self.checkpoint_updates, self.keep_checkpoints) < 1:
            raise ValueError("log_updates, checkpoint_updates and keep_checkpoints are at least 1")
        if min(self.loader_slots, self.loader_threads) < 1:
            raise ValueError("loader_slots and loader_threads are at least 1")
