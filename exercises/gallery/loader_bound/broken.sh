# A real loader in front of a simulated GPU, which waits instead of computing: 400 images/s.
[ -d large ] || python photos.py
verb=$1; shift
rn50 $verb --set step=400 -b 16 --image-shape 224 --loader native --data-nthreads 1 \
  --data-root large "$@"
