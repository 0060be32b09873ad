import os
import resource

SIZE, PHOTOS, MEMORY = 2**20, 64, 32 * 2**20  # bytes of a photo, photos, bytes for the page cache
with open("train.rec", "wb") as file:
    file.write(os.urandom(SIZE * PHOTOS))
    os.fsync(file.fileno())  # the kernel drops only what is on the disk
file, cached = os.open("train.rec", os.O_RDONLY), []
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
order = [37 * i % PHOTOS for i in range(PHOTOS)]  # shuffled
for part in ("first try", "epoch 1, start", "epoch 1, end", "epoch 2, start", "epoch 2, end"):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
    for photo in order[32:] if "end" in part else order[:32]:
        os.pread(file, SIZE, photo * SIZE)
        cached = [other for other in cached if other != photo] + [photo]
        if len(cached) * SIZE > MEMORY:  # as the kernel does: drop the least recently read
            os.posix_fadvise(file, cached.pop(0) * SIZE, SIZE, os.POSIX_FADV_DONTNEED)
    blocks = resource.getrusage(resource.RUSAGE_SELF).ru_inblock - before  # of 512 bytes
    print(f"{part}: {blocks // 2048} MB from the disk")
