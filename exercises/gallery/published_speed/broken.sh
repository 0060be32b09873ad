# A simulated V100 in FP32: it waits instead of computing
rn50 benchmark --set step=400 --loader synthetic --image-shape 224 -n 1 -b 96 -i 4 --no-val -o bench.json
rn50 compare bench.json --published DGX-1/mixed | head -n 4
