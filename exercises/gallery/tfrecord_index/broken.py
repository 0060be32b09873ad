import subprocess
from pathlib import Path

from nvidia.dali import fn, pipeline_def, tfrecord

LABEL = "image/class/label"
shards = sorted(str(path) for path in Path("shards").glob("train-*-of-*"))
indexes = [f"shards/index/{Path(shard).name}.idx" for shard in shards]
for shard, index in zip(shards, indexes, strict=True):
    subprocess.run(f"tfrecord2idx.py {shard} > {index}", shell=True)


@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def pipeline():
    features = {LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1)}
    return fn.readers.tfrecord(path=shards, index_path=indexes, features=features)[LABEL]


pipe = pipeline()
pipe.build()
print("labels:", pipe.run()[0].as_array().ravel().tolist())
