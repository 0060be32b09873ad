# As Horovod 0.28.1 compiles its PyTorch sources: CMakeLists.txt sets CMAKE_CXX_STANDARD to 14.
torch=$(python -c "import torch; print(torch.__path__[0])")
echo "#include <ATen/ATen.h>" | g++ -std=c++14 -I"$torch/include" -fsyntax-only -Wfatal-errors -x c++ - 2>&1 |
  sed "s|$torch|torch|" | grep -m 1 error || echo "PyTorch's headers compile"
