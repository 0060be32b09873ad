#!/bin/sh
# Runs what needs a GPU, in parts of a few minutes: for a machine lent for a quarter of an hour.
#
#   sh scripts/gpu_day.sh                      runs every part: speed compile kernels variants traces notebooks ladder input recipe
#   sh scripts/gpu_day.sh speed notebooks 07   runs these parts; of the notebooks only 07
#   WHEELS=wheels sh scripts/gpu_day.sh        sets up without a network (docs/platforms.md)
#   PYTHON=.venv/bin/python sh scripts/gpu_day.sh     uses an environment that has the project
#   CPU=1 sh scripts/gpu_day.sh                tries every step, small, without a GPU
#   ONLY=train sh scripts/gpu_day.sh           runs the steps whose names begin with it
#
# runs/gpu_day/ (or OUT) receives the log and the figures of each step as it ends, status.txt, and all in
# one file, gpu_day.json: whenever the machine is taken back, what has ended is there. A step that fails
# or reaches its time limit does not stop the others; called again, the script skips the steps that have
# passed. Every step and every part has a time limit (SECONDS_PER_PART changes the parts'), and MINUTES
# (60) limits all together. The set-up and the first three parts take about a quarter of an hour. At its
# limit a step is interrupted as by Ctrl-C: a benchmark prints the rounds that are complete.
cd "$(dirname "$0")/.." || exit 1
mkdir -p "${OUT:=runs/gpu_day}"
OUT=$(realpath "$OUT")
LAST=$(($(date +%s) + 60 * ${MINUTES:-60}))
END=$LAST
failed=0
[ -n "${CPU:-}" ] && patience=3 || patience=1 # how many times the limits apply

parts= numbers=
for word in "$@"; do
  case $word in
  [0-9]*) numbers="$numbers $word" ;;
  speed | compile | kernels | variants | traces | notebooks | ladder | input | recipe) parts="$parts $word" ;;
  *) echo "gpu_day.sh: $word is not a part: see the head of the script" >&2; exit 2 ;;
  esac
done
[ -z "$numbers" ] || case $parts in *notebooks*) ;; *) parts="$parts notebooks" ;; esac
: "${parts:=speed compile kernels variants traces notebooks ladder input recipe}"
: "${numbers:=00 01 02 03 04 05 06 07 08}"

# a step ends with this script, also if that is killed: `timeout` has its own process group
bound=$(command -v setpriv >/dev/null && echo "setpriv --pdeathsig INT")

begin() { # begin PART SECONDS: true if it is wanted; its time begins
  case " $parts " in *" $1 "*) ;; *) return 1 ;; esac
  END=$(($(date +%s) + ${SECONDS_PER_PART:-$(($2 * patience))}))
  [ "$END" -lt "$LAST" ] || END=$LAST
}

step() { # step NAME SECONDS COMMAND...
  name=$1 limit=$(($2 * patience)) left=$((END - $(date +%s)))
  shift 2
  case $name in "${ONLY:-}"*) ;; *) return ;; esac
  [ -e "$OUT/$name.ok" ] && return
  [ "$limit" -lt "$left" ] || limit=$left
  if [ "$limit" -gt 0 ]; then
    $bound timeout -s INT -k 20 "$limit" "$@" >"$OUT/$name.log" 2>&1 && result=ok || result="failed ($?)"
  else
    result="no time left"
  fi
  if [ "$result" = ok ]; then touch "$OUT/$name.ok"; else failed=1; fi
  echo "$(date +%T) $name: $result" | tee -a "$OUT/status.txt"
  collect
}

reader=${PYTHON:-python3}
collect() { # everything in one file: how each step ended, its figures, and the end of its log
  $reader - "$OUT" <<'END'
import json, os, sys
from pathlib import Path

out = Path(sys.argv[1])
lines = (out / "status.txt").read_text().splitlines()
steps = dict(line.split(" ", 1)[1].split(": ", 1) for line in lines)  # the last result of each
found = {"steps": steps, "figures": {}, "logs": {}}
for file in sorted({*out.glob("*.json")} - {out / "gpu_day.json"}):
    try:
        found["figures"][file.stem] = json.loads(file.read_text())
    except ValueError:  # its step was cut off
        pass
for file in sorted(out.glob("*.log")):
    found["logs"][file.stem] = file.read_text(errors="replace").splitlines()[-200:]
draft = out / ".gpu_day.json"
draft.write_text(json.dumps(found, indent=1))
os.replace(draft, out / "gpu_day.json")
END
}

if [ -z "${PYTHON:-}" ]; then
  PYTHON=.venv/bin/python
  [ -z "${WHEELS:-}" ] || export PIP_NO_INDEX=1 PIP_FIND_LINKS="$(realpath "$WHEELS")"
  step setup 480 make setup
fi
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 KINETO_LOG_LEVEL=6
rn50="$PYTHON -m rn50"
python=$($PYTHON -c 'import sys; print(sys.executable)') # absolute: notebooks run in other folders
if ! command -v rn50 >/dev/null && [ ! -x "$(dirname "$python")/rn50" ]; then # for their shell cells
  mkdir -p "$OUT/bin"
  printf '#!/bin/sh\nexec "%s" -m rn50 "$@"\n' "$python" >"$OUT/bin/rn50"
  chmod +x "$OUT/bin/rn50"
  export PATH="$PATH:$OUT/bin"
fi
bench="$rn50 benchmark -n 1 -e 2 -w 1 --no-val"
size="-b 256 -i 30 --image-shape 224" peers="--rounds 5 --seconds 0.5" large="--batches 256" medium="--batches 64" small="--batches 1 16"
dtypes="tf32 float32" half=float16 rungs="--batch-size 128 --workers 12" profile=gpu own="--dtype float16"
epochs=9 images=7680 workers="--workers 16 --sizes 224" signs=${RN50_DATA:-data}/roadsigns draw=""
traced="-b 256 --image-shape 224 --num-examples 4096" compiled="6_compiled_ddp 6_compiled_horovod"
if [ -n "${CPU:-}" ]; then
  size="-b 4 -i 3 --image-shape 32 --network tiny" peers="--rounds 1 --seconds 0.1 --size 64 --threads 1" large="--batches 2" medium=$large small=$large
  dtypes="" half=float32 rungs="--image-size 32 --batch-size 2 --steps 2" profile=ci own="--profile ci --dtype float32"
  epochs=2 images=256 workers="--workers 1 --sizes 32" signs=$OUT/roadsigns draw="--train 96 --val 48" traced="-b 4 --num-examples 800" compiled="" # which takes minutes
else
  export RN50_REQUIRE_CAPABILITIES=gpu,torch # so that no test is skipped
fi

step machine 60 sh -c "nvidia-smi; $PYTHON -m pip list --format=freeze; git describe --always --dirty || true"
case $parts in *traces* | *notebooks* | *ladder* | *recipe*) step signs 120 $PYTHON -m data_prep.roadsigns "$signs" $draw ;; esac

# the peers' network: a torchvision of the same age as PyTorch, where only the benchmarks see it
compare() { # compare NAME SECONDS ARGUMENTS...: benchmarks/steps.py
  name=$1 limit=$2
  shift 2
  step "$name" "$limit" env PYTHONPATH="$PYTHONPATH:$OUT/peers" $PYTHON benchmarks/steps.py "$@" $peers
}
case $parts in *speed* | *compile* | *kernels* | *variants*)
  vision=0.$(($($PYTHON -c "from importlib.metadata import version; print(version('torch').split('.')[1])") + 15)).0
  $PYTHON -c "from importlib.metadata import version; version('torchvision')" 2>/dev/null ||
    step torchvision 120 $PYTHON -m pip install -q --retries 1 --no-deps --target "$OUT/peers" "torchvision==$vision"
  # without a GPU: its operators are for CUDA, and the network needs none
  registrations=$OUT/peers/torchvision/_meta_registrations.py
  [ -n "${CPU:-}" ] && [ -e "$registrations" ] && : >"$registrations" ;;
esac
if begin speed 300; then # a comparison for each result that is wanted, the most important first
  compare train-256 170 train $large --dtypes $half --only eager fused
  compare predict-1-16 120 predict $small --dtypes $half --only eager graph "ours, graph"
fi
if begin compile 330; then
  compare predict-compile 120 predict $large --dtypes $half --only compile "ours, compile"
  compare train-compile 200 train $large --dtypes $half --only compile "ours, compile" "ours, fused graph"
  compare train-64 70 train $medium --dtypes $half --only ours "ours, graph"
fi
if begin kernels 300; then
  step tests 120 $PYTHON -m pytest -q tests/launch/test_hardware.py tests/backends/test_speed.py -k "real_gpu or TestGpu"
  compare train-floor 90 train $large --dtypes $half --only ours graph "ours, graph" kernels
  for way in plain cuda_graph fused; do
    [ -n "${CPU:-}" ] && [ $way != plain ] && continue
    [ $way = plain ] && set -- || set -- --set $way=true
    step "trace-run-$way" 60 $rn50 run -n 1 -e 1 $traced $own --loader synthetic --num-classes 1000 \
      --no-val "$@" --trace "$OUT/run-$way.json.gz" --run-dir "$OUT/trace-run-$way"
  done
fi
if begin variants 300; then
  compare predict-replayed 160 predict $small --dtypes $half --only ours graph replayed
  for dtype in $dtypes; do
    compare "train-$dtype" 90 train $large --dtypes "$dtype" --only eager "ours, fused"
  done
fi

# Horovod on one rank, whose gradients go through NCCL, and the other rungs of the course's script
rung() { # rung NAME STEP ARGUMENTS...
  rung=$1 start=$PYTHON data=$OUT/shards
  name=$2-$1
  shift 2
  case $rung in *_ddp) start="$PYTHON -m torch.distributed.run --standalone --nproc-per-node 1" ;; esac
  case $rung in [12]*) data=$signs ;; esac
  step "$name" 120 $start exercises/ladder/$rung.py --data "$data" $rungs "$@"
}
ladder="1_single 2_ddp 3_dali_ddp 4_amp_ddp 5_tuned_ddp 2_horovod 3_dali_horovod 4_amp_horovod 5_tuned_horovod $compiled"
END=$LAST
case $parts in *ladder* | *traces*) step shards 60 $PYTHON -m data_prep.tfrecord "$signs" "$OUT/shards" --train-shards 8 ;; esac
if begin traces 420; then
  for one in $ladder; do rung "$one" trace --steps 5 --trace "$OUT/$one.json.gz"; done
fi
if begin notebooks 0; then # each has its own limit
  for number in $numbers; do
    END=$LAST
    step "notebook-$number" 300 $rn50 workshop run $number --profile $profile --time-limit 280 --out "$OUT/notebook-$number"
  done
fi
if begin ladder 300; then
  step horovod 60 $PYTHON -m horovod.runner.launch --check-build
  for one in $ladder; do rung "$one" ladder --report "$OUT/ladder-$one.json"; done
fi
if begin input 300; then # the step on synthetic images, then with each input: its share
  step images 240 $PYTHON -m data_prep.roadsigns "$OUT/images" --train $images --val 12
  step records 60 $PYTHON -m data_prep.tfrecord "$OUT/images"
  step synthetic 90 $bench $size --loader synthetic --num-classes 12 $own -o "$OUT/synthetic.json"
  for format in files tfrecord; do
    step "dali-$format" 90 $bench $size --data-root "$OUT/images" --recipe reference --data-format $format \
      --loader dali $own -o "$OUT/dali-$format.json"
  done
  step shares 30 $rn50 compare "$OUT/synthetic.json" "$OUT/dali-files.json" "$OUT/dali-tfrecord.json"
  [ -n "${CPU:-}" ] && gpu= || gpu=--gpu
  step loaders 120 $PYTHON benchmarks/loaders.py $gpu $workers --rounds 5 --root "$OUT/images" --only dali DALI
fi
if begin recipe 300; then
  own="-n 1 --data-root $signs --recipe roadsigns $own"
  step run 240 $rn50 run $own -e $epochs --resume --run-dir "$OUT/run" --model-prefix "$OUT/run/model" \
    --report "$OUT/run.json"
  step score 60 $rn50 score "$OUT/run/model" $epochs $own --report "$OUT/score.json"
fi

END=$LAST
step doctor 60 $rn50 doctor --json
exit $failed
