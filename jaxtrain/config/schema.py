"""The schema: every key once, with its default, its meaning, its unit and its check.

A key's type is its annotation; `X | None` means that the key is optional and `None` unsets it.
Nothing else in the package gives a key a default. `free` keys may change when a run is resumed;
all others identify the run.
"""
# ruff: noqa: RUF009 - `key` and `section` only wrap dataclasses.field

import dataclasses
from typing import Any

from jaxtrain.config.checks import (
    Check,
    all_positive,
    batch_count,
    call_length,
    channel_count,
    channel_numbers,
    channel_scales,
    choice,
    class_count,
    colour,
    crop_share,
    fraction,
    image_shape,
    image_sides,
    non_empty,
    non_negative,
    peer_timeout,
    positive,
    proper_fraction,
    seed_range,
    skip_limit,
    step_count,
    synthetic_examples,
    thread_count,
    unit_interval,
)


def key(default: Any, doc: str, check: Check | None = None, *, free: bool = False) -> Any:
    """Declares one key.

    Args:
        default: the value when nobody sets the key.
        doc: what it means, with its unit; shown by `jaxtrain check --print_config`.
        check: value to a complaint ("must be above 0") or None. Never called with None, NaN or
            an infinity: those are refused before.
        free: whether a resumed run may change it.
    """
    metadata = {"doc": doc, "check": check, "free": free}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(kind: type) -> Any:
    """A nested group of keys."""
    return dataclasses.field(default_factory=kind)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticConfig:
    """The `synthetic` data: random images or features, for benchmarks and trials."""

    image_shape: tuple[int, ...] = key(
        (32, 32, 3), "height, width, channels; or the number of features", image_shape
    )
    examples: int = key(1024, "examples of the split train", synthetic_examples)
    eval_examples: int = key(256, "examples of the split test", synthetic_examples)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the examples come from, and what is made of them."""

    source: str = key(
        "mnist",
        "kind of data: mnist (ships with jaxtrain), folder (of images, one folder a class), csv "
        "(or JSON lines: image files and labels), arrays (NumPy), idx, tfds or synthetic",
    )
    path: str | None = key(
        None,
        "folder of the data, or its file (csv, arrays); read by tfds as its data_dir",
        non_empty,
        free=True,
    )
    path_column: str = key("path", "column of a csv that has the image files", non_empty)
    label_column: str = key("label", "its column of labels, names or numbers", non_empty)
    split_column: str = key("split", "its column of split names, if it has one", non_empty)
    val_share: float = key(
        0.1,
        "share of each class that becomes the split val where own data comes without splits",
        proper_fraction,
    )
    name: str | None = key(None, "data set (and /config) of TensorFlow Datasets", non_empty)
    version: str | None = key(None, "its version; None: the newest that is there", non_empty)
    image_key: str = key("image", "its feature that is the image", non_empty)
    label_key: str = key("label", "its feature that is the label", non_empty)
    download: bool = key(False, "download and prepare it if it is not there", free=True)
    synthetic: SyntheticConfig = section(SyntheticConfig)
    train_split: str = key(
        "train", "split to train on; with tfds also a part of one, as in train[:80%]", non_empty
    )
    eval_split: str | None = key(
        None, "split to evaluate on, likewise; None: val if own data has it, else test", non_empty
    )
    holdout: int | None = key(
        None,
        "examples cut from the training split and evaluated on while training, to choose on",
        positive,
    )
    num_classes: int | None = key(
        None,
        "number of classes; None: one more than the largest training label; 10 if synthetic",
        class_count,
    )
    class_names: tuple[str, ...] | None = key(
        None, "one name a class, in label order; None: the source's names, else the numbers"
    )
    channels: int | None = key(
        None, "channels of images from files: 1, 3 or 4 (with alpha); None: 3", channel_count
    )
    background: tuple[int, ...] = key(
        (0,), "colour behind transparent images from files: one number or three, 0 to 255", colour
    )
    on_bad_file: str = key(
        "error",
        "what to do about image files that cannot be decoded: error (stop at the first), or skip "
        "(decode all before training, and leave them out)",
        choice("error", "skip"),
    )
    standardize: bool = key(
        False,
        "subtract the mean of the training examples and divide by their deviation, feature by "
        "feature; read by arrays of features",
    )
    image_size: tuple[int, ...] | None = key(
        None,
        "side, or height,width, that images are brought to; None: as they are, all of one size",
        image_sides,
    )
    crop: str = key(
        "center",
        "part of an image to train on: center, as in evaluation, or random_resized(0.08,1.0), of "
        "that share of its area",
        non_empty,
    )
    eval_image_size: tuple[int, ...] | None = key(
        None,
        "side, or height,width, at which images are evaluated and predicted, if it is another; for "
        "models that take any size",
        image_sides,
    )
    eval_crop: float = key(1.0, "share of the shorter side that the centre crop keeps", crop_share)
    mean: tuple[float, ...] = key(
        (0.0,),
        "subtracted from images in 0..1, or from features: one number, or one a channel or feature",
        channel_numbers,
    )
    std: tuple[float, ...] = key(
        (1.0,), "divides them after that: one number, or one a channel", channel_scales
    )
    augment: str = key(
        "",
        "random changes of training images, as in 'flip|pad_crop(4)|cutout(8)': flip, pad_crop, "
        "cutout, random_erasing, affine, elastic, brightness, contrast, saturation, hue, "
        "greyscale, noise, blur, randaugment, trivialaugment, and last mixup, cutmix or "
        "mixup_or_cutmix",
    )
    class_weights: str | None = key(
        None,
        "factors on the training loss by class: balanced, or one number a class, as in 1,2.5",
        non_empty,
    )
    cache: str = key(
        "auto",
        "where decoded examples are kept: device, memory (the host's, as far as they fit), disk, "
        "none, or auto (device if small, else memory)",
        choice("auto", "device", "memory", "disk", "none"),
        free=True,
    )
    cache_path: str | None = key(
        None,
        "folder of the disk cache; None: jaxtrain in the user's cache folder",
        non_empty,
        free=True,
    )
    threads: int | None = key(
        None,
        "threads that read ahead when examples are not on the device; None: one for each CPU, at "
        "most 16",
        thread_count,
        free=True,
    )
    ahead: int = key(
        8, "batches read ahead when examples are not on the device", batch_count, free=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MlpConfig:
    """The `mlp` model."""

    hidden_sizes: tuple[int, ...] = key((512,), "units of each hidden layer", all_positive)
    activation: str = key("swish", "activation after each hidden layer")
    dropout: float = key(0.0, "share of hidden units dropped while training", fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResnetConfig:
    """The `resnet...` models."""

    stem: str | None = key(
        None,
        "first layers: imagenet (7x7 and pooling, both with stride 2) or cifar (3x3); None: as "
        "the model's family has it",
        choice("imagenet", "cifar"),
    )
    width: float = key(1.0, "factor on the channels of every layer", positive)
    norm: str = key("batch", "normalisation: batch or group", choice("batch", "group"))
    groups: int = key(32, "groups of channels that group normalises; read by group", positive)
    zero_init: bool = key(True, "start each block's last normalisation with scale 0")
    stochastic_depth: float = key(
        0.0, "share of examples that skip the last block; linearly less before it", fraction
    )
    dropout: float = key(0.0, "share of pooled features dropped while training", fraction)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The network."""

    name: str = key(
        "mlp",
        "mlp, resnet and its depth (18, 34, 50, 101, 152, 200; 8, 20, 56 for small images), or "
        "your own module as package.module:Class",
        non_empty,
    )
    dtype: str = key(
        "float32",
        "dtype to compute in: float32, bfloat16 or float16",
        choice("float32", "bfloat16", "float16"),
    )
    mlp: MlpConfig = section(MlpConfig)
    resnet: ResnetConfig = section(ResnetConfig)
    args: dict[str, Any] = key({}, "arguments of your own module")
    init_from: str | None = key(
        None,
        "weights to start from: a run's folder, or a .safetensors or PyTorch .pth file of a ResNet",
        non_empty,
    )
    freeze: str | None = key(
        None, "backbone: train the last layer, which is named head, alone", choice("backbone")
    )
    freeze_batch_stats: bool | None = key(
        None,
        "normalise by the running batch statistics while training too, and leave them as they "
        "are; None: with freeze=backbone",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """How gradients become updates."""

    name: str = key(
        "adam", "sgd, rmsprop, adagrad, adam, adamw, lion, muon, or lars or lamb (large batches)"
    )
    learning_rate: float = key(1e-3, "peak learning rate", positive)
    weight_decay: float = key(
        0.0,
        "weight decay: added to the gradient (sgd, rmsprop, adagrad, adam, lars) or to the update "
        "(decoupled: adamw, lion, muon, lamb)",
        non_negative,
    )
    decay_rules: str = key(
        "kernel=1; .*=0",
        "factor on weight_decay by parameter name: 'PATTERN=FACTOR; ...', first match counts; lars "
        "and lamb adapt the rate of those above 0 by layer",
        non_empty,
    )
    rate_rules: str = key(
        ".*=1",
        "factor on the learning rate by parameter name, as in 'head=10; .*=1'; what has 0 is "
        "frozen",
        non_empty,
    )
    clip_norm: float | None = key(None, "largest global norm of the gradient", positive)
    momentum: float | None = key(
        None, "momentum; read by sgd, rmsprop, lars (None: 0.9) and muon (None: 0.95)", fraction
    )
    nesterov: bool = key(False, "Nesterov momentum; read by sgd, rmsprop and lars")
    b1: float | None = key(
        None, "first decay of adam, adamw, lion, lamb and muon's adam; None: Optax's", fraction
    )
    b2: float | None = key(
        None, "second decay of these, and that of rmsprop; None: Optax's", fraction
    )
    eps: float | None = key(
        None, "epsilon of rmsprop, adagrad, adam, adamw, muon and lamb; None: Optax's", positive
    )
    initial_accumulator: float | None = key(
        None,
        "first value of the squared gradients of adagrad (None: 0.1) and rmsprop (None: 0)",
        non_negative,
    )
    trust_coefficient: float | None = key(
        None, "a layer's rate over the ratio of its norms; read by lars; None: 0.001", positive
    )
    skip_nonfinite: int = key(
        0,
        "updates in a row that are skipped at most where the loss or a gradient is NaN or "
        "infinite; one more ends the run",
        skip_limit,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """The learning rate over the run."""

    name: str = key("constant", "constant, cosine, linear, exponential or step")
    warmup_steps: int | None = key(None, "steps of linear warm-up from 0", non_negative)
    warmup_epochs: float | None = key(None, "epochs of linear warm-up from 0", non_negative)
    end_factor: float = key(
        0.0, "last rate over the peak rate; read by cosine and linear", unit_interval
    )
    decay_rate: float | None = key(
        None, "factor for each decay_epochs (exponential) or boundary (step)", positive
    )
    decay_epochs: float | None = key(
        None, "epochs in which exponential decays by decay_rate once", positive
    )
    boundaries: tuple[float, ...] = key(
        (), "epochs at whose ends step multiplies the rate by decay_rate", all_positive
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, and how many examples an update."""

    batch_size: int = key(128, "examples an update, over all devices", positive)
    accumulate: int = key(
        1,
        "parts of the batch that are computed one after the other, to save memory; each is "
        "normalised by its own batch statistics",
        positive,
    )
    loss: str = key(
        "softmax",
        "training loss: softmax (one class is right) or binary (each class is right or not, by its "
        "own sigmoid)",
    )
    binary_threshold: float | None = key(
        None,
        "classes with a larger share of a mixed label than this are right; read by binary; None: "
        "as far as their share",
        fraction,
    )
    label_smoothing: float = key(
        0.0, "share of the target that is spread over all classes", fraction
    )
    ema_decay: float | None = key(
        None,
        "decay of an average of the weights over the updates, as 0.999; lower at first; evaluated "
        "and used in place of the weights unless eval.weights=raw",
        proper_fraction,
    )
    replicas: int = key(
        1,
        "models that are trained at once, in one program, of the seeds seed, seed + 1, ..., each "
        "on its own batches",
        positive,
    )
    replicate: str | None = key(
        None,
        "models of one seed that differ in one number instead, as in "
        "'optimizer.learning_rate=0.1,0.03,0.01'",
        non_empty,
    )
    export_replica: int = key(
        0,
        "which of them, counted from 0, is the run's model, that predicts and is exported",
        non_negative,
    )
    epochs: float | None = key(None, "passes over the training split; or set steps", positive)
    steps: int | None = key(None, "updates; or set epochs", step_count)
    steps_per_call: int | None = key(
        None,
        "updates that the devices do in one go, at most, so that a stop takes up to 5 times as "
        "many; None: 10 for data on the devices and a model without convolutions, else 1",
        call_length,
        free=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation while training; the last step is always evaluated."""

    batch_size: int = key(1000, "examples a batch, over all devices", positive, free=True)
    every_steps: int | None = key(
        None,
        "steps between evaluations; 0: only the last; or set every_epochs",
        non_negative,
        free=True,
    )
    every_epochs: float | None = key(
        None, "epochs between evaluations; 1 if neither is set", non_negative, free=True
    )
    weights: str | None = key(
        None,
        "weights to evaluate, predict with and export: ema (the average of train.ema_decay) or "
        "raw; None: ema where there is one",
        choice("ema", "raw"),
        free=True,
    )
    flip_average: bool = key(
        False, "average the logits of each image and of its mirror image", free=True
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Checkpoints; the last step is always saved."""

    every_steps: int | None = key(
        None,
        "steps between checkpoints; 0: only the last; or set every_epochs",
        non_negative,
        free=True,
    )
    every_epochs: float | None = key(
        None, "epochs between checkpoints; 1 if neither is set", non_negative, free=True
    )
    keep: int = key(3, "newest checkpoints to keep", positive, free=True)
    best_metric: str | None = key(
        None,
        "also keep the checkpoint that is best by accuracy or loss; use data.holdout with it",
        choice("accuracy", "loss"),
        free=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How the work is laid over the devices of one or of many processes."""

    mode: str = key(
        "jit",
        "how a step runs on several devices: jit, or pmap (data parallel only)",
        choice("jit", "pmap"),
        free=True,
    )
    mesh: str = key(
        "data=-1",
        "devices along each axis, as in 'data=4,model=2': data and fsdp split the batch, fsdp and "
        "model the parameters; -1 takes what is left",
        non_empty,
        free=True,
    )
    rules: str = key(
        "replicated",
        "how parameters lie on the mesh: replicated, fsdp, tensor, or "
        "'PATTERN=AXIS,AXIS; ...' by parameter name, with one axis or - a dimension",
        non_empty,
        free=True,
    )
    peer_timeout_seconds: float = key(
        60.0,
        "seconds without a sign of life after which a process counts as lost",
        peer_timeout,
        free=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """What is written while training."""

    every_steps: int = key(100, "steps between reports; 0: only the last", non_negative, free=True)
    tensorboard: bool = key(True, "write TensorBoard event files", free=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """One run, resolved. Frozen; made by `from_dict` only."""

    seed: int = key(0, "seed of every random choice", seed_range)
    data: DataConfig = section(DataConfig)
    model: ModelConfig = section(ModelConfig)
    optimizer: OptimizerConfig = section(OptimizerConfig)
    schedule: ScheduleConfig = section(ScheduleConfig)
    train: TrainConfig = section(TrainConfig)
    eval: EvalConfig = section(EvalConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    parallel: ParallelConfig = section(ParallelConfig)
    report: ReportConfig = section(ReportConfig)
