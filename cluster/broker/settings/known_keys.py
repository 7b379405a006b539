"""RocketMQ's broker settings that change nothing here, each with its reason."""

from __future__ import annotations

from typing import Final

_JAVA_THREADS = (
    "sizes Java's thread pools and their queues; requests are handled on one event loop here"
)
_JAVA_NETTY = "tunes Netty; the remoting server has its own limits"
_JAVA_MEMORY = "tunes how Java maps, locks or copies files"
_ROCKSDB = "RocksDB stores are not supported"
_LATER = "the feature is not built yet"
_BIT_MAPS = "filters are judged by the properties themselves here, without bit maps of them"
_AUTH_CACHES = "sizes caches that are not needed: users and rules are in memory"
_OBSOLETE = "has no effect in RocketMQ 5 either"
_ALWAYS = "the behaviour is fixed here"
_CHECKED = "a certificate that a client shows is always checked"

_BY_REASON: Final[dict[str, str]] = {
    _CHECKED: "tls.server.authClient",
    _JAVA_THREADS: """
        ackMessageThreadPoolNums ackThreadPoolQueueCapacity adminBrokerThreadPoolNums
        adminBrokerThreadPoolQueueCapacity asyncSendEnable batchDispatchRequestThreadPoolNums
        clientCallbackExecutorThreads clientManageThreadPoolNums
        clientManagerThreadPoolQueueCapacity consumerManageThreadPoolNums
        consumerManagerThreadPoolQueueCapacity dispatchCqCacheNum dispatchCqThreads
        dispatchFromSenderThread enableAsyncReput enableBuildConsumeQueueConcurrently
        endTransactionPoolQueueCapacity endTransactionThreadPoolNums heartbeatThreadPoolNums
        heartbeatThreadPoolQueueCapacity litePullMessageThreadPoolNums
        litePullThreadPoolQueueCapacity loadBalanceProcessorThreadPoolNums
        loadBalanceThreadPoolQueueCapacity maxAsyncPutMessageRequests
        processReplyMessageThreadPoolNums pullMessageThreadPoolNums pullThreadPoolQueueCapacity
        putMessageFutureThreadPoolNums putThreadPoolQueueCapacity queryMessageThreadPoolNums
        queryThreadPoolQueueCapacity recoverConcurrently recoverThreadPoolNums
        replyThreadPoolQueueCapacity sendMessageThreadPoolNums sendThreadPoolQueueCapacity
        serverCallbackExecutorThreads topicQueueLockNum waitTimeMillsInAckQueue
        waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue
        waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
        brokerFastFailureEnable osPageCacheBusyTimeOutMills timerGetMessageThreadNum
        timerPutMessageThreadNum compactionThreadNum
    """,
    _JAVA_NETTY: """
        channelNotActiveInterval clientAsyncSemaphoreValue clientChannelMaxIdleTimeSeconds
        clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable
        clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads connectTimeoutMillis
        disableCallbackExecutor disableNettyWorkerGroup enableFastChannelEventProcess
        enableReconnectForGoAway enableShutdownGracefully isScanAvailableNameSrv
        maxReconnectIntervalTimeSeconds printChannelGroups printChannelGroupsMinNum
        serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable
        serverNettyWorkerGroupEnable serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable
        serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize serverSocketSndBufSize
        serverWorkerThreads shutdownWaitTimeSeconds socksProxyConfig useEpollNativeSelector
        writeBufferHighWaterMark writeBufferLowWaterMark useTLS
    """,
    _JAVA_MEMORY: """
        accessMessageInMemoryHotRatio cleanSwapedMapInterval commitCommitLogLeastPages
        commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval
        commitLogSwapMapInterval commitLogSwapMapReserveFileNum correctLogicMinOffsetForceInterval
        correctLogicMinOffsetSleepInterval dataReadAheadEnable debugLockEnable
        fastFailIfNoBufferInStorePool flushCommitLogTimed flushLeastPagesWhenWarmMapedFile
        logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
        logicalDiskSpaceCleanForciblyThreshold mappedFileSwapEnable messageIndexSafe
        putConsumeQueueDataByFileChannel putMessageTimeout putMsgIndexHightWater readUnCommitted
        recheckReputOffsetFromCq redeleteHangedFileInterval replicasPerDiskPartition
        spinLockCollisionRetreatOptimalDegree transferMsgByHeap transientStorePoolEnable
        transientStorePoolSize travelCqFileNumWhenGetMessage useABSLock
        useReentrantLockWhenPutMessage wakeCommitWhenPutMessage wakeFlushWhenPutMessage
        warmMapedFileEnable writeWithoutMmap deleteConsumeQueueFilesInterval
        maxBatchDeleteFilesNum maxRecoveryCommitlogFiles maxConsumeQueueScan sampleCountThreshold
        sampleSteps diskFallRecorded searchBcqByCacheEnable enableRunningFlagsInFlush
    """,
    _ROCKSDB: """
        bottomMostCompressionTypeForConsumeQueueStore cleanRocksDBDirtyCQIntervalMin
        enableRocksDBLog memTableFlushIntervalMs realTimePersistRocksDBConfig
        rocksdbCQDoubleWriteEnable rocksdbCompressionType rocksdbFlushWalFrequency
        rocksdbWalFileRollingThreshold
        statRocksDBCQIntervalSec storeType configManagerVersion
    """,
    _LATER: """
        appendAckAsync
        appendCkAsync broadcastOffsetExpireMaxSecond
        broadcastOffsetExpireSecond brokerNotActiveTimeoutMillis cgColdReadThreshold
        coldCtrStrategyEnable coldDataFlowControlEnable coldDataScanEnable
        compactionCqMappedFileSize compactionMappedFileSize compactionScheduleInternal
        consumerFallbehindThreshold
        defaultMessageRequestMode defaultPopShareQueueNum disableConsumeIfConsumerReadSlowly
        disappearTimeAfterStart duplicationEnable enableBroadcastOffsetStore
        enableCompaction enableConsumeQueueExt
        dLegerGroup dLegerPeers dLegerSelfId enableDLegerCommitLog
        enableLmq enableLmqStats enableMixedMessageType enableMultiDispatch
        enableNetWorkFlowControl enableNotifyAfterPopOrderLockRelease
        enableNotifyBeforePopCalculateLag enablePopBatchAck enablePopBufferMerge enablePopLog
        enablePopMessageThreshold enableRemoteEscape enableRetryTopicV2 enableScheduleAsyncDeliver
        enableSkipLongAwaitingAck enableSlaveActingMaster enabledAppendPropCRC
        estimateAccumulation fetchControllerAddrByDnsLookup
        fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval
        forceVerifyPropCRC forwardTimeout
        globalColdReadThreshold initPopOffsetByCheckMsgInMem isBrokerContainer isInBrokerContainer brokerConfigPaths
        lockInStrictMode
        mapperFileSizeBatchConsumeQueue maxLmqConsumeQueueNum
        maxOffsetMapSize maxPopPollingSize messageStorePlugIn
        readOnlyCommitLogStorePaths storePathDLedgerCommitLog metricGrpcExporterIntervalInMills
        metricGrpcExporterTimeOutInMills metricLoggingExporterIntervalInMills
        metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta
        metricsOtelCardinalityLimit popCkMaxBufferSize popCkOffsetMaxQueueSize
        popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
        popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
        popFromRetryProbability popInflightMessageThreshold popLongPollingForceNotifyInterval
        popPollingMapSize popPollingSize popResponseReturnActualRetryTopic
        popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead pullBatchMaxMessageCount
        retrieveMessageFromPopRetryTopicV1 reviveAckWaitMs reviveInterval
        reviveMaxSlow reviveQueueNum reviveScanTime rmqAddressServerDomain
        rmqAddressServerSubGroup scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked skipPreOnline skipWhenCKRePutReachMaxTimes
        syncBrokerMemberGroupPeriod
        syncMasterFlushOffsetWhenStartup
        usePIDColdCtrStrategy useStaticSubscription
        maxChecksumRange haFlowControlEnable
        maxHaTransferByteInSecond maxSlaveResendLength
        clearRetryTopicWhenDeleteTopic subscriptionExpiredTimeout
    """,
    _BIT_MAPS: """
        bitMapLengthConsumeQueueExt enableCalcFilterBitMap expectConsumerNumUseFilter filterDataCleanTimeSpan
        mappedFileSizeConsumeQueueExt maxErrorRateOfBloomFilter
    """,
    _AUTH_CACHES: """
        aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond
        statefulAuthenticationCacheExpiredSecond statefulAuthenticationCacheMaxNum
        statefulAuthorizationCacheExpiredSecond statefulAuthorizationCacheMaxNum userCacheExpiredSecond
        userCacheMaxNum userCacheRefreshSecond
    """,
    _OBSOLETE: """
        accountStatsEnable accountStatsPrintZeroValues autoDeleteUnusedStats
        cleanOfflineBrokerInterval commercialBaseCount commercialBigCount commercialEnable
        commercialSizePerMsg commercialTimerCount commercialTransCount compressedRegister
        enableBatchPush enableDetailStat enableScheduleMessageStats filterServerNums highSpeedMode
        isEnableBatchPush isolateLogEnable mapedFileSizeCommitLog mapedFileSizeConsumeQueue
        maxDelayTime maxStatsIdleTimeInMinutes
    """,
    _ALWAYS: """
        timerCheckMetricsWhen timerColdDataCheckIntervalMs timerEnableCheckMetrics
        timerEnableDisruptor timerEnableRetryUntilSuccess timerInterceptDelayLevel
        timerMetricSmallThreshold timerProgressLogIntervalMs timerSkipUnknownError timerWarmEnable
        compatibleWithOldNameSrv consumerOffsetUpdateVersionStep delayOffsetUpdateVersionStep
        enableCleanExpiredOffset enableRegisterProducer enableSplitRegistration
        flushConsumerOffsetHistoryInterval flushDelayOffsetInterval
        loadBalancePollNameServerInterval maxTopicLength splitRegistrationSize
        updateNameServerAddrPeriod forceRegister configBlackList brokerConfigPath rocketmqHome
        checkSyncStateSetPeriod controllerHeartBeatTimeoutMills enableAutoInSyncReplicas
        sendHeartbeatTimeoutMillis syncBrokerMetadataPeriod syncControllerMetadataPeriod totalReplicas
    """,
}

#: switches that RocketMQ has off, of features that are not here: who turns one on counts on it
COUNTED_ON: Final = frozenset(
    {
        "coldDataFlowControlEnable",
        "duplicationEnable",
        "enableSlaveActingMaster",
        "enabledAppendPropCRC",
        "forceVerifyPropCRC",
        "popConsumerKVServiceEnable",
        "rocksdbCQDoubleWriteEnable",
    }
)

#: key -> why it changes nothing here
WITHOUT_EFFECT: Final[dict[str, str]] = {
    key: reason for reason, keys in _BY_REASON.items() for key in keys.split()
}
