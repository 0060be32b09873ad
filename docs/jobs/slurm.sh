#!/bin/bash
#SBATCH --job-name=rn50
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-node=4
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@90
# Two nodes with four GPUs each, and 8 cores for each worker. Set FOLDER and the flags of `rn50 train`, and
# submit it where `rn50` is on PATH. Every node must see this environment, the data and FOLDER.
# Slurm sends SIGTERM to the workers 90 s before the time limit (before a preemption, the
# partition's GraceTime applies). They exit with 143; the job is queued again and resumes. With
# --loader native, they write a checkpoint first. DALI, the default on GPUs, cannot begin in the
# middle of an epoch: the job repeats the epoch.
set -u
FOLDER=/nas/runs/first
export NCCL_DEBUG=WARN
# If the start hangs (docs/troubleshooting.md, "Initialisation hangs across hosts"), name the network:
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
RN50=rn50  # in a container: "apptainer exec --nv --bind /nas rn50.sif rn50"
mkdir -p "$FOLDER"
status=0
# --wait: when the first worker exits, the others have 80 s to finish the checkpoint.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=0 --wait=80 \
  $RN50 train --data-root /nas/imagenet \
  --run-dir "$FOLDER" --model-prefix "$FOLDER/model" --set keep=2 --resume || status=$?
if [ "$status" = 143 ]; then
  echo "stopped by SIGTERM: back in the queue, will resume from the newest checkpoint"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
