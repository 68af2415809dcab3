# attn-zoo on a CPU: docker build -t attn-zoo . && docker run --rm -it attn-zoo
FROM python:3.12-slim
RUN useradd --create-home zoo
USER zoo
WORKDIR /home/zoo/attn-zoo
COPY --chown=zoo . .
ENV PATH="/home/zoo/attn-zoo/.venv/bin:$PATH"
RUN python3 -m venv .venv
RUN .venv/bin/pip install --no-cache-dir torch torchvision --index-url https://download.pytorch.org/whl/cpu
RUN .venv/bin/pip install --no-cache-dir -e .
RUN attn-zoo list
CMD ["attn-zoo", "leaderboard", "--reference"]
