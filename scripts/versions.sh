#!/bin/sh
# Changes requirements-cpu.txt, in a checkout made for it, to a different PyTorch and TensorFlow.
#
#   scripts/versions.sh 2.15.0 2.20.0
#
# tests/environment/test_requirements.py compares the file with others: leave it out of the tests.
set -e
cd "$(dirname "$0")/.."
sed -i -E "s/^torch==.*/torch==$1/; s/^(tensorflow(-cpu)?)==[^;]*/\1==$2/" requirements-cpu.txt
case $2 in 2.20.*)
  sed -i -E "s/^(# +--no-deps tf-keras)==.*/\1==2.20.1/; s/^protobuf==.*/protobuf==6.33.6/; s/^tensorboard==.*/tensorboard==2.20.0/" requirements-cpu.txt
esac
git diff --stat requirements-cpu.txt
