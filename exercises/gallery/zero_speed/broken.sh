rn50 benchmark --loader synthetic --network tiny --image-shape 64 -n 1 -b 8 -i 1 --no-val -o bench.json
