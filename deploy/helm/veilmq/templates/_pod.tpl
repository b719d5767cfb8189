{{- define "veilmq.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "veilmq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "veilmq.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "veilmq.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "veilmq.selector" -}}
app.kubernetes.io/name: {{ include "veilmq.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "veilmq.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{ include "veilmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* What both kinds of pods are. */}}
{{- define "veilmq.pod" -}}
metadata:
  labels:
    {{- include "veilmq.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  {{- with .Values.podAnnotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  # A Service called veilmq would set VEILMQ_PORT, which is a setting.
  enableServiceLinks: false
  automountServiceAccountToken: false
  # Running requests get drain_s_max, after the 5 s in which the pod leaves the Service; then the store is closed.
  terminationGracePeriodSeconds: {{ add 40 (.Values.settings.drain_s_max | default 20) }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with .Values.image.pullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.topologySpreadConstraints }}
  topologySpreadConstraints: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: veilmq
      image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      env:
        # The console is for `kubectl port-forward`, which connects from the pod itself.
        - {name: VEILMQ_ADMIN_HOST, value: 127.0.0.1}
        - {name: VEILMQ_METRICS_HOST, value: 0.0.0.0}
        - {name: VEILMQ_METRICS_PORT, value: "9326"}
        - {name: VEILMQ_INSECURE, value: {{ empty .Values.credentials.existingSecret | quote }}}
        {{- if .Values.credentials.existingSecret }}
        - {name: VEILMQ_CREDENTIALS, value: /etc/veilmq/credentials/keys.toml}
        {{- end }}
        {{- if .Values.tls.existingSecret }}
        - {name: VEILMQ_TLS_CERTIFICATE, value: /etc/veilmq/tls/tls.crt}
        - {name: VEILMQ_TLS_KEY, value: /etc/veilmq/tls/tls.key}
        {{- end }}
        {{- if .Values.postgres.existingSecret }}
        - name: VEILMQ_STORE
          valueFrom:
            secretKeyRef: {name: {{ .Values.postgres.existingSecret }}, key: {{ .Values.postgres.key }}}
        {{- end }}
        {{- range $name, $value := .Values.settings }}
        - {name: VEILMQ_{{ upper $name }}, value: {{ ternary (int64 $value | toString) (toString $value) (kindIs "float64" $value) | quote }}}
        {{- end }}
        {{- with .Values.extraEnv }}{{ toYaml . | nindent 8 }}{{ end }}
      ports:
        - {name: queues, containerPort: 9324}
        - {name: metrics, containerPort: 9326}
      # A start may convert the data folder of an earlier version.
      startupProbe:
        httpGet: {path: /health/live, port: metrics}
        periodSeconds: 2
        failureThreshold: 300
      livenessProbe:
        httpGet: {path: /health/live, port: metrics}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet: {path: /health/ready, port: metrics}
        periodSeconds: 5
        timeoutSeconds: 4
        failureThreshold: 2
      lifecycle:
        preStop:
          exec: {command: [sleep, "5"]}
      {{- with .Values.resources }}
      resources: {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - {name: data, mountPath: /srv/veilmq-data}
        {{- if .Values.credentials.existingSecret }}
        - {name: credentials, mountPath: /etc/veilmq/credentials, readOnly: true}
        {{- end }}
        {{- if .Values.tls.existingSecret }}
        - {name: tls, mountPath: /etc/veilmq/tls, readOnly: true}
        {{- end }}
        {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 8 }}{{ end }}
  volumes:
    {{- if .Values.postgres.existingSecret }}
    # Only the list of its databases, for a start while they are down.
    - {name: data, emptyDir: {sizeLimit: 16Mi}}
    {{- end }}
    {{- with .Values.credentials }}
    {{- if .existingSecret }}
    - name: credentials
      secret:
        secretName: {{ .existingSecret }}
        defaultMode: 0440
        items: [{key: {{ .key }}, path: keys.toml}]
    {{- end }}
    {{- end }}
    {{- if .Values.tls.existingSecret }}
    - name: tls
      secret: {secretName: {{ .Values.tls.existingSecret }}, defaultMode: 0440}
    {{- end }}
    {{- with .Values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end }}
