#!/bin/sh
# Runs everything that needs a GPU, one step after the other: for a machine lent for half an hour.
#
#   WHEELS=wheels sh scripts/gpu_day.sh        sets up without a network (docs/platforms.md)
#   PYTHON=.venv/bin/python sh scripts/gpu_day.sh     uses an environment that has the project
#   CPU=1 sh scripts/gpu_day.sh                tries every step, small, without a GPU
#   ONLY=train sh scripts/gpu_day.sh           runs the steps whose names begin with it
#
# runs/gpu_day/ (or OUT) receives the log and the figures of each step, and status.txt. A step that
# fails or reaches its time limit does not stop the others; called again, the script skips the
# steps that have passed. MINUTES (29) limits all steps together.
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${OUT:=runs/gpu_day}"
OUT=$(realpath "$OUT")
END=$(($(date +%s) + 60 * ${MINUTES:-29}))
failed=0

step() { # step NAME SECONDS COMMAND...
  name=$1 limit=$2 left=$((END - $(date +%s)))
  shift 2
  case $name in "${ONLY:-}"*) ;; *) return ;; esac
  [ -e "$OUT/$name.ok" ] && return
  [ "$limit" -lt "$left" ] || limit=$left
  if [ "$limit" -gt 0 ]; then
    timeout -k 10 "$limit" "$@" >"$OUT/$name.log" 2>&1 && result=ok || result="failed ($?)"
  else
    result="no time left"
  fi
  if [ "$result" = ok ]; then touch "$OUT/$name.ok"; else failed=1; fi
  echo "$(date +%T) $name: $result" | tee -a "$OUT/status.txt"
}

if [ -z "${PYTHON:-}" ]; then
  PYTHON=.venv/bin/python
  [ -z "${WHEELS:-}" ] || export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(realpath "$WHEELS")"
  export DALI="${DALI:-cuda130}"
  step setup 480 make setup
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
rn50="$PYTHON -m rn50"
size="-b 128,256 -i 30 --image-shape 224" batches="-b 1,2,4,8,16,32,64,128,256 -i 30 --image-shape 224"
dtypes="float16 bfloat16 float32 tf32" rungs="--batch-size 128 --workers 12" profile=gpu own="--dtype float16" epochs=9 images=7680
signs=${RN50_DATA:-data}/roadsigns draw="" compiled="6_compiled_ddp 6_compiled_horovod"
if [ -n "${CPU:-}" ]; then
  size="-b 2,4 -i 3 --image-shape 32 --network tiny" batches=$size
  dtypes="float16 bfloat16 float32" rungs="--image-size 32 --batch-size 2 --steps 2" profile=ci own="--profile ci --dtype float32" epochs=2 images=24
  signs=$OUT/roadsigns draw="--train 96 --val 48" compiled="" # which takes minutes
else
  export RN50_REQUIRE_CAPABILITIES=gpu,torch # so that no test is skipped
fi
bench="$rn50 benchmark -n 1 -e 2 -w 1"
synthetic="--loader synthetic --num-classes 1000"

step machine 60 sh -c "nvidia-smi; $PYTHON -m pip list --format=freeze; git describe --always --dirty"
step doctor 60 $rn50 doctor --json
step tests 180 $PYTHON -m pytest -q tests/launch/test_hardware.py tests/backends/test_speed.py \
  -k "real_gpu or TestGpu"
step signs 120 $PYTHON -m data_prep.roadsigns "$signs" $draw
for number in 02 03 05 06; do
  step "notebook-$number" 300 $rn50 workshop run $number --profile $profile --time-limit 280 \
    --out "$OUT/notebook-$number"
done

# Horovod on one rank, whose gradients go through NCCL, and the other rungs of the course's script
step horovod 60 "$(dirname "$PYTHON")/horovodrun" --check-build
step shards 60 $PYTHON -m data_prep.tfrecord "$signs" "$OUT/shards" --train-shards 8
for rung in 1_single 2_ddp 2_horovod 3_dali_ddp 3_dali_horovod 4_amp_ddp 4_amp_horovod \
  5_tuned_ddp 5_tuned_horovod $compiled; do
  start=$PYTHON
  case $rung in *_ddp) start="$PYTHON -m torch.distributed.run --standalone --nproc-per-node 1" ;; esac
  case $rung in [12]*) data=$signs ;; *) data=$OUT/shards ;; esac
  step "ladder-$rung" 120 $start exercises/ladder/$rung.py --data "$data" $rungs \
    --report "$OUT/ladder-$rung.json"
  step "trace-$rung" 120 $start exercises/ladder/$rung.py --data "$data" $rungs --steps 5 \
    --trace "$OUT/$rung.trace"
done

for dtype in $dtypes; do
  step "train-$dtype" 180 $bench $size --dtype "$dtype" --no-val $synthetic -o "$OUT/train-$dtype.json"
done
[ -n "${CPU:-}" ] || {
  for way in cuda_graph fused; do
    step "train-$way" 180 $bench $size --dtype float16 --no-val $synthetic --set $way=true -o "$OUT/train-$way.json"
  done
  step train-compile 180 $bench $size -b 256 --dtype float16 --no-val $synthetic --compile -o "$OUT/train-compile.json"
}
step images 240 $PYTHON -m data_prep.roadsigns "$OUT/images" --train $images --val 12
step records 60 $PYTHON -m data_prep.tfrecord "$OUT/images"
for format in files tfrecord; do
  step "dali-$format" 180 $bench $size --data-root "$OUT/images" --recipe reference --data-format $format \
    --loader dali --dtype float16 --no-val -o "$OUT/dali-$format.json"
done
for dtype in $dtypes; do
  step "infer-$dtype" 180 $bench $batches --dtype "$dtype" --only-inference $synthetic -o "$OUT/infer-$dtype.json"
done
own="-n 1 --data-root $signs --recipe roadsigns $own"
step run 240 $rn50 run $own -e $epochs --resume --run-dir "$OUT/run" --model-prefix "$OUT/run/model" \
  --report "$OUT/run.json"
step score 60 $rn50 score "$OUT/run/model" $epochs $own --report "$OUT/score.json"

# everything in one file: how each step ended, and its figures
$PYTHON - "$OUT" <<'END'
import json, sys
from pathlib import Path

out = Path(sys.argv[1])
lines = (out / "status.txt").read_text().splitlines()
steps = dict(line.split(" ", 1)[1].split(": ", 1) for line in lines)  # the last result of each
figures = {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")}
figures.pop("gpu_day", None)
(out / "gpu_day.json").write_text(json.dumps({"steps": steps, "figures": figures}, indent=1))
END
exit $failed
