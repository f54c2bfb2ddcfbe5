"""Real TRL runs whose prompts are numbered, so that a test sees with which of them a resumed run continues."""

from itertools import groupby

from support import tiny_model
from support.trl.runs import make, recorded


def numbered(rows=64):
    """The tiny data set with a column that tells the rows apart."""
    return tiny_model.dataset(rows).add_column("number", list(range(rows)))


def prompts_of(folder, loss_type, resume=None, **flags):
    """The prompts that were sampled before each optimizer step, the trainer, and the steps' micro-batches."""
    given = dict(train_dataset=numbered(), remove_unused_columns=False, rewards=[tiny_model.ones], max_steps=6)
    trainer, of_step = make(folder, loss_type, **{**given, **flags}), {}
    generate = trainer._generate_and_score_completions

    def watched(inputs):
        of_step.setdefault(trainer.state.global_step, []).extend(row["number"] for row in inputs)
        return generate(inputs)

    trainer._generate_and_score_completions = watched
    seen = recorded(trainer)
    trainer.train(resume_from_checkpoint=resume)
    return of_step, trainer, [list(micro) for _, micro in groupby(seen, key=lambda m: m["step"])]
