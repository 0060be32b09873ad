#!/bin/bash
#SBATCH --job-name=<name>
#SBATCH --nodes=<nodes>
#SBATCH --ntasks-per-node=<local>
#SBATCH --cpus-per-task=<cores>
#SBATCH --gpus-per-node=<gpus>
#SBATCH --time=04:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=TERM@<grace_s>
# Slurm sends SIGTERM to the workers <grace_s> s before the time limit (before a preemption, the
# partition's GraceTime applies). They write a checkpoint and exit with 143; the job is queued again
# and resumes.
set -u
export NCCL_DEBUG=WARN
mkdir -p <folder>
status=0
# --wait: when the first worker exits, the others have <save_s> s to finish the checkpoint.
srun --cpus-per-task=<cores> --kill-on-bad-exit=0 --wait=<save_s> \
  <command> || status=$?
if [ "$status" = 143 ]; then
  echo "stopped by SIGTERM: back in the queue, will resume from the checkpoint"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
