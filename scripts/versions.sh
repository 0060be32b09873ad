#!/bin/sh
# Changes the pinned PyTorch and TensorFlow of a checkout, to test others: scripts/versions.sh 2.15.0 2.20.0
set -e
cd "$(dirname "$0")/.."
files="requirements-cpu.txt environment.yml"
sed -i -E "s/\btorch==[0-9.]+/torch==$1/; s/\b(tensorflow(-cpu)?)==[0-9.]+/\1==$2/" $files
case $2 in 2.20.*) # the versions in requirements-gpu.txt
  sed -i -E "s/tf-keras==[0-9.]+/tf-keras==2.20.1/; s/\bprotobuf==[0-9.]+/protobuf==6.33.6/; s/\btensorboard==[0-9.]+/tensorboard==2.20.0/" $files
esac
git diff --stat $files
