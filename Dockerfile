# The lessons for a class, on a machine without a GPU: CLASSES.md says how. Mount a reader's volume at notebooks/mine.
FROM python:3.12-slim
RUN useradd --create-home --uid 1000 reader
WORKDIR /labkit
COPY . .
# Where pip finds PyTorch's CPU build; without it the image has CUDA in it, too.
ARG PIP_EXTRA_INDEX_URL
RUN pip install --no-cache-dir -e ".[serve]" "jupyterhub>=6,<7" \
 && mkdir -p notebooks/mine && chown reader notebooks/mine
USER reader
ENV OMP_NUM_THREADS=1
EXPOSE 8888
CMD ["python", "-m", "labkit", "--no-browser", "--ip=0.0.0.0"]
