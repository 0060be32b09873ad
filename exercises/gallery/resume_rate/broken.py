import sys

import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
first = 0
if sys.argv[1:] == ["--resume"]:
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    first = saved["epoch"] + 1
for epoch in range(first, first + 3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).mean().backward()
    optimizer.step()
    print(f"epoch {epoch}: learning rate {optimizer.param_groups[0]['lr']:.4g}")
    scheduler.step()
    torch.save({"epoch": epoch, "model": model.state_dict()}, "last.pt")
