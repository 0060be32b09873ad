import torch

# a GPU since Ampere computes a float32 convolution in TF32, which keeps 10 of 23 bits of a number
setting = torch.backends.cudnn.conv
images, weights = torch.randn(8, 64, 14, 14), torch.randn(64, 64, 3, 3)
exact = torch.conv2d(images.double(), weights.double())
if torch.cuda.is_available():
    found = torch.conv2d(images.cuda(), weights.cuda()).cpu()
else:  # the same rounding on a processor, which has no TF32

    def rounded(x):
        bits = x.view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)

    if setting.fp32_precision == "tf32":
        images, weights = rounded(images), rounded(weights)
    found = torch.conv2d(images, weights)
error = ((found - exact).norm() / exact.norm()).item()
print(f"float32 convolution, error {error:.0e}")
