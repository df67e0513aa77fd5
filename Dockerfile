# The lessons for a class, on a machine without a GPU: CLASSES.md says how. Mount a reader's volume at notebooks/mine.
FROM python:3.12-slim
RUN useradd --create-home --uid 1000 reader
WORKDIR /labkit
COPY . .
RUN pip install --no-cache-dir --extra-index-url <address> -e . "jupyterhub>=6,<7" \
 && mkdir -p notebooks/mine && chown reader notebooks/mine
USER reader
ENV OMP_NUM_THREADS=1
EXPOSE 8888
CMD ["python", "-m", "labkit", "--no-browser", "--ip=0.0.0.0"]
