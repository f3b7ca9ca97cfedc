# The demo: real digits from tars to a classifier that is killed and resumed on other hosts.
#   docker build -t energon-grain-demo . && docker run --rm energon-grain-demo
# In PyTorch:
#   docker build -t energon-grain-demo --build-arg BACKEND=torch . && docker run --rm energon-grain-demo
FROM python:3.12-slim

ARG BACKEND=jax
ENV BACKEND=$BACKEND PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY energon_grain energon_grain
COPY adapters adapters
RUN pip install --upgrade 'pip>=25.1' && \
    if [ "$BACKEND" = torch ]; then \
      pip install --extra-index-url https://download.pytorch.org/whl/cpu '.[torch]' --group demo-torch; \
    else \
      pip install '.[jax]' --group demo; \
    fi

WORKDIR /demo
COPY examples/digits digits
CMD if [ "$BACKEND" = torch ]; then exec python digits/demo_torch.py; else exec python digits/demo.py; fi
