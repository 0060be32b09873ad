import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
images = torch.randint(0, 65536, (8, 3, 16, 16)).float().to(device)  # 16 bits a pixel
labels = torch.randint(0, 10, (8,)).to(device)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 14 * 14, 10))
nn.init.kaiming_normal_(model[0].weight)
optimizer = torch.optim.SGD(model.to(device).parameters(), lr=0.001)
scaler = torch.amp.GradScaler(device)
for step in range(6):
    optimizer.zero_grad()
    with torch.autocast(device, torch.float16):
        loss = nn.functional.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)  # skipped if a gradient is not finite; then the scale is halved
    scaler.update()
    print(f"step {step}: loss {loss:.4g}, loss scale {scaler.get_scale():g}", flush=True)
