# docker build -t jaxtrain .                         for CPUs
# docker build -t jaxtrain --build-arg EXTRAS=gpu .  for NVIDIA GPUs; EXTRAS=tpu for TPUs
FROM python:3.12-slim

ARG EXTRAS=""

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY configs configs
COPY jaxtrain jaxtrain
RUN pip install --no-cache-dir ".${EXTRAS:+[$EXTRAS]}"

# Runs land in the folder that is mounted here.
WORKDIR /data
ENTRYPOINT ["jaxtrain"]
CMD ["--help"]
