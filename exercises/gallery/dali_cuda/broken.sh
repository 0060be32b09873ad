pip install nvidia-dali-cuda120
python -c "import nvidia.dali"
