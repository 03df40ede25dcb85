"""Steps, events and learning rates of a run."""

from jaxtrain import optimizer, plan
from jaxtrain.config import Config


def build_plan(config: Config, examples: int) -> plan.Plan:
    """Steps and events of a run over `examples` training examples."""
    return plan.build(config.train, config.eval, config.checkpoint, config.report, examples)


def build_schedule(config: Config, run_plan: plan.Plan) -> optimizer.Schedule:
    """Finished updates to learning rate.

    Raises:
        UsageError: as for `optimizer.build_schedule`, or a warm-up that does not fit the plan.
    """
    span = optimizer.Span(
        run_plan.total_steps, run_plan.warmup_steps(config.schedule), run_plan.steps_per_epoch
    )
    return optimizer.build_schedule(config.schedule, config.optimizer.learning_rate, span)
