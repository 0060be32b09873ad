import torch
from torch import nn


class Shuffle(nn.Module):
    """Mix the channels of two groups."""

    def forward(self, x):
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w).contiguous()


layers = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), Shuffle(), nn.ReLU(), nn.Conv2d(16, 32, 3)]
model = nn.Sequential(*layers).to(memory_format=torch.channels_last)


def note(layer, inputs):
    format = inputs[0].is_contiguous(memory_format=torch.channels_last)
    print(f"{type(layer).__name__} reads {'channels_last' if format else 'NCHW'}", flush=True)


for layer in model:
    layer.register_forward_pre_hook(note)
model(torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last))
