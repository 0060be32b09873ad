import subprocess
from pathlib import Path

from nvidia.dali import fn, pipeline_def
from nvidia.dali import tfrecord as tfrec

shards = sorted(str(path) for path in Path("shards").glob("train-*-of-*"))
indexes = [f"shards/index/{Path(shard).name}.idx" for shard in shards]
for shard, index in zip(shards, indexes, strict=True):
    with open(index, "w") as file:
        subprocess.run(f"tfrecord2idx.py {shard}", shell=True, stdout=file)


@pipeline_def(batch_size=4, num_threads=1, device_id=None)
def pipeline():
    features = {"image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1)}
    return fn.readers.tfrecord(path=shards, index_path=indexes, features=features)[
        "image/class/label"
    ]


pipe = pipeline()
pipe.build()
print("labels:", pipe.run()[0].as_array().ravel().tolist())
