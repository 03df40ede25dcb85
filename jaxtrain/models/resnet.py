"""Residual networks (He et al., 2016), padded as the published PyTorch weights need it.

A network is `stem_conv`, `stem_norm`, the blocks `stage1_block0`, `stage1_block1`, ... and `head`.
A block holds `conv1`, `norm1`, `conv2`, `norm2` (a bottleneck also `conv3`, `norm3`) and, where
the shape changes, `shortcut_conv` and `shortcut_norm`. Stages count from 1, blocks from 0. So
torchvision's `layer2.0.bn1.weight` is `stage2_block0/norm1/scale` and its `downsample.0.weight` is
`shortcut_conv/kernel`, which is HWIO where PyTorch's is OIHW.
"""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import jax.typing

from jaxtrain.config.schema import ResnetConfig
from jaxtrain.errors import UsageError
from jaxtrain.models.convolution import Conv
from jaxtrain.models.layers import RowDropout, StochasticDepth
from jaxtrain.models.norms import normalise

_EXPANSION = 4


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What tells one residual network from another.

    Attributes:
        stage_sizes: blocks of each stage.
        channels: of the stem; each stage after the first has twice those of the one before.
        bottleneck: blocks of 1x1, 3x3 and 1x1 convolutions, whose last has 4 times the channels;
            else of two 3x3.
        stem: `imagenet` or `cifar`, unless the config says otherwise.
    """

    stage_sizes: tuple[int, ...]
    channels: int
    bottleneck: bool
    stem: str


ARCHITECTURES: dict[str, Architecture] = {
    "resnet8": Architecture((1, 1, 1), 16, bottleneck=False, stem="cifar"),
    "resnet20": Architecture((3, 3, 3), 16, bottleneck=False, stem="cifar"),
    "resnet56": Architecture((9, 9, 9), 16, bottleneck=False, stem="cifar"),
    "resnet18": Architecture((2, 2, 2, 2), 64, bottleneck=False, stem="imagenet"),
    "resnet34": Architecture((3, 4, 6, 3), 64, bottleneck=False, stem="imagenet"),
    "resnet50": Architecture((3, 4, 6, 3), 64, bottleneck=True, stem="imagenet"),
    "resnet101": Architecture((3, 4, 23, 3), 64, bottleneck=True, stem="imagenet"),
    "resnet152": Architecture((3, 8, 36, 3), 64, bottleneck=True, stem="imagenet"),
    "resnet200": Architecture((3, 24, 36, 3), 64, bottleneck=True, stem="imagenet"),
}


class Block(nn.Module):
    """A residual block; a bottleneck has its stride in the 3x3 convolution ("v1.5").

    Attributes:
        channels: of its convolutions, but the last of a bottleneck, which has 4 times as many.
        stride: of its first 3x3 convolution.
        bottleneck: 1x1, 3x3 and 1x1 convolutions; else two 3x3.
        groups: groups of GroupNorm; None for BatchNorm.
        zero_init: start the last normalisation's scale at 0, so that the block does nothing.
        drop: share of examples that skip the block while training.
        dtype: dtype of the computation; parameters stay float32.
        freeze_batch_stats: use the running batch statistics in training as well, and keep them.
    """

    channels: int
    stride: int
    bottleneck: bool
    groups: int | None
    zero_init: bool
    drop: float
    dtype: jax.typing.DTypeLike
    freeze_batch_stats: bool = False

    @nn.compact
    def __call__(
        self, inputs: jax.Array, *, row: jax.Array, mask: jax.Array, train: bool, axis: str | None
    ) -> jax.Array:
        """`[batch, H, W, channels]` to `[batch, ceil(H / stride), ceil(W / stride), outputs]`.

        Args:
            inputs: activations.
            row: int32 `[batch]`, rows in the global batch.
            mask: bool `[batch]`, rows that count.
            train: whether to use and move the batch statistics, and to drop.
            axis: the axis of the devices, if these are the rows of one of them.
        """
        by_batch = train and not self.freeze_batch_stats
        sides = (1, 3, 1) if self.bottleneck else (3, 3)
        branch = inputs
        for index, side in enumerate(sides, start=1):
            last = index == len(sides)
            channels = self.channels * (_EXPANSION if self.bottleneck and last else 1)
            stride = self.stride if index == sides.index(3) + 1 else 1
            branch = Conv(channels, side, stride, self.dtype, name=f"conv{index}")(branch)
            branch = normalise(
                branch,
                groups=self.groups,
                mask=mask,
                train=by_batch,
                axis=axis,
                name=f"norm{index}",
                zero_scale=last and self.zero_init,
            )
            branch = branch if last else nn.relu(branch)
        branch = StochasticDepth(self.drop, name="depth")(branch, row=row, train=train)
        shortcut = inputs
        if self.stride != 1 or inputs.shape[-1] != branch.shape[-1]:
            convolution = Conv(branch.shape[-1], 1, self.stride, self.dtype, name="shortcut_conv")
            shortcut = convolution(inputs)
            shortcut = normalise(
                shortcut,
                groups=self.groups,
                mask=mask,
                train=by_batch,
                axis=axis,
                name="shortcut_norm",
            )
        return nn.relu(branch + shortcut)


class ResNet(nn.Module):
    """Stem, stages of residual blocks, mean over pixels, and a linear layer.

    Attributes:
        stage_sizes: blocks of each stage; each stage but the first halves height and width.
        channels: of each stage's blocks; the stem has those of the first stage.
        bottleneck: the kind of block.
        pooled_stem: a 7x7 convolution and max pooling, both with stride 2; else a 3x3 convolution.
        groups: groups of GroupNorm; None for BatchNorm.
        zero_init: start each block's last normalisation with scale 0.
        stochastic_depth: share of examples that skip the last block; of L blocks, the l-th is
            skipped by l/L of that.
        dropout: share of pooled features dropped while training.
        num_classes: logits.
        dtype: dtype of the computation; parameters and statistics stay float32.
        freeze_batch_stats: use the running batch statistics in training as well, and keep them.
    """

    stage_sizes: tuple[int, ...]
    channels: tuple[int, ...]
    bottleneck: bool
    pooled_stem: bool
    groups: int | None
    zero_init: bool
    stochastic_depth: float
    dropout: float
    num_classes: int
    dtype: jax.typing.DTypeLike
    freeze_batch_stats: bool = False

    @nn.compact
    def __call__(
        self,
        image: jax.Array,
        *,
        row: jax.Array,
        mask: jax.Array,
        train: bool,
        axis: str | None = None,
    ) -> jax.Array:
        """Logits `[batch, num_classes]`.

        Args:
            image: float `[batch, H, W, C]`, any H, W and C.
            row: int32 `[batch]`, rows in the global batch.
            mask: bool `[batch]`. While training, rows that are False change nothing of the other
                rows, the gradients and the statistics, whatever they hold.
            train: whether to use and move the batch statistics, and to drop.
            axis: the axis of the devices, if these are the rows of one of them; the batch
                statistics are those of all.

        Raises:
            UsageError: these are no images.
        """
        if image.ndim != 4:
            raise UsageError(
                f"model.name: a ResNet takes images, but an example is {image.shape[1]} features; "
                "set model.name=mlp"
            )
        if train:
            # A gradient of 0 does not undo a NaN that it is multiplied with.
            image = jnp.where(mask[:, None, None, None], image, 0)
        by_batch = train and not self.freeze_batch_stats
        hidden = self._stem(image, mask=mask, train=by_batch, axis=axis)
        blocks = 0
        for stage, size in enumerate(self.stage_sizes):
            for index in range(size):
                blocks += 1
                block = Block(
                    channels=self.channels[stage],
                    stride=2 if stage > 0 and index == 0 else 1,
                    bottleneck=self.bottleneck,
                    groups=self.groups,
                    zero_init=self.zero_init,
                    drop=self.stochastic_depth * blocks / sum(self.stage_sizes),
                    dtype=self.dtype,
                    freeze_batch_stats=self.freeze_batch_stats,
                    name=f"stage{stage + 1}_block{index}",
                )
                hidden = block(hidden, row=row, mask=mask, train=train, axis=axis)
        features = hidden.mean((1, 2), dtype=jnp.float32).astype(self.dtype)
        features = RowDropout(self.dropout, name="dropout")(features, row=row, train=train)
        return self._head(features)

    def _stem(
        self, image: jax.Array, *, mask: jax.Array, train: bool, axis: str | None
    ) -> jax.Array:
        side, stride = (7, 2) if self.pooled_stem else (3, 1)
        hidden = Conv(self.channels[0], side, stride, self.dtype, name="stem_conv")(image)
        hidden = normalise(
            hidden, groups=self.groups, mask=mask, train=train, axis=axis, name="stem_norm"
        )
        hidden = nn.relu(hidden)
        if self.pooled_stem:
            hidden = nn.max_pool(hidden, (3, 3), (2, 2), ((1, 1), (1, 1)))
        return hidden

    def _head(self, features: jax.Array) -> jax.Array:
        # As PyTorch's linear layer: a uniform kernel within 1/sqrt(inputs), at which the published
        # recipes start. The bias is 0, as a random one only adds noise to the first losses.
        kernel_init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
        head = nn.Dense(self.num_classes, dtype=self.dtype, kernel_init=kernel_init, name="head")
        return head(features)


def build(
    name: str,
    config: ResnetConfig,
    num_classes: int,
    dtype: jax.typing.DTypeLike,
    *,
    freeze_batch_stats: bool = False,
) -> ResNet:
    """A `ResNet` from its config.

    Args:
        name: one of `ARCHITECTURES`.
        config: the `model.resnet` section.
        num_classes: logits.
        dtype: the dtype to compute in.
        freeze_batch_stats: use the running batch statistics in training as well, and keep them.

    Raises:
        UsageError: groups that are set without group normalisation, or that do not divide the
            channels.
    """
    architecture = ARCHITECTURES[name]
    channels = tuple(
        max(1, round(architecture.channels * 2**stage * config.width))
        for stage in range(len(architecture.stage_sizes))
    )
    return ResNet(
        stage_sizes=architecture.stage_sizes,
        channels=channels,
        bottleneck=architecture.bottleneck,
        pooled_stem=(config.stem or architecture.stem) == "imagenet",
        groups=_groups(name, config, channels),
        zero_init=config.zero_init,
        stochastic_depth=config.stochastic_depth,
        dropout=config.dropout,
        num_classes=num_classes,
        dtype=dtype,
        freeze_batch_stats=freeze_batch_stats,
    )


def _groups(name: str, config: ResnetConfig, channels: tuple[int, ...]) -> int | None:
    """Groups of GroupNorm; None for BatchNorm."""
    default = ResnetConfig().groups
    if config.norm == "batch":
        if config.groups != default:
            raise UsageError(
                f"model.resnet.groups={config.groups} is set, but model.resnet.norm=batch does not "
                f"read it; set model.resnet.norm=group, or unset it with "
                f"--config.model.resnet.groups={default}"
            )
        return None
    # A bottleneck's 4 times as many are divided as well.
    common = math.gcd(*channels)
    if common % config.groups:
        fit = max(size for size in range(1, min(common, config.groups) + 1) if common % size == 0)
        raise UsageError(
            f"model.resnet.groups={config.groups} does not divide the channels of {name} at "
            f"model.resnet.width={config.width:g}, which are {', '.join(map(str, channels))}; "
            f"set model.resnet.groups={fit}"
        )
    return config.groups
